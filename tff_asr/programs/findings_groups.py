"""All groups of the federated paper's findings."""

from tff_asr.programs import findings_federated
from tff_asr.programs import findings_models
from tff_asr.programs import findings_private

# In the order of their runs.
ALL = (
    findings_private.TABLE,
    findings_private.NOISE,
    findings_federated.COHORT,
    findings_federated.OPTIMIZERS,
    findings_federated.WORK,
    findings_federated.SEEDS,
    findings_models.ARCHITECTURES,
    findings_models.SIZES,
    findings_private.SPLIT,
)
# The table, then by letter.
IN_REPORT = tuple(
    sorted(ALL, key=lambda group: (len(group.name) == 1, group.name))
)
