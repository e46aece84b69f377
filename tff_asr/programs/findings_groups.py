"""All groups of the federated paper's findings, in the order of their runs."""

from tff_asr.programs import findings_federated
from tff_asr.programs import findings_models
from tff_asr.programs import findings_private

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
