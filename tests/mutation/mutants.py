"""Plausible bugs, as exact replacements in the code, and who must catch them.

`tools/mutate.py` plants each one alone in a copy of the project and demands
that the named tests fail; the table in docs/testing.md says which test did.
`mutants_test` keeps the list in step with the code.
"""

from tests.mutation import modelling
from tests.mutation import privacy
from tests.mutation import training

MUTANTS = (*modelling.MUTANTS, *privacy.MUTANTS, *training.MUTANTS)
