"""All groups of the federated paper's findings."""

from tff_asr.findings import federated
from tff_asr.findings import models
from tff_asr.findings import private

# In the order of their runs.
ALL = (
    private.TABLE,
    private.NOISE,
    federated.COHORT,
    federated.OPTIMIZERS,
    federated.WORK,
    federated.SEEDS,
    models.ARCHITECTURES,
    models.SIZES,
    private.SPLIT,
    private.MORE_TO_LEARN,
)
# The table, then by letter.
IN_REPORT = tuple(
    sorted(ALL, key=lambda group: (len(group.name) == 1, group.name))
)
