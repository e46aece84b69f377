"""Plausible bugs, as exact replacements in the code, and who must catch them.

`tools/mutate.py` plants each one alone in a copy of the project and demands
that the named tests fail; the table in docs/testing.md says which test did.
`mutants_test` keeps the list in step with the code.
"""

from tools import mutants_modelling
from tools import mutants_privacy
from tools import mutants_rounds
from tools import mutants_training

MUTANTS = (
    *mutants_modelling.MUTANTS,
    *mutants_privacy.MUTANTS,
    *mutants_rounds.MUTANTS,
    *mutants_training.MUTANTS,
)
