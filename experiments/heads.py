"""Recipes of heads on a public encoder, which the suites share."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments import design

PRETRAINED = 'whisper-tiny.en'
# Of AN4's head.
NUM_PARAMETERS = 249_762


class Heads(NamedTuple):
  """Recipes of one corpus, trained on stored features.

  Attributes:
    seed: Trained by the public speakers, centrally.
    federated: Then by the private speakers, without DP.
    private: The same with DP; rows set its noise, and name it.
  """

  seed: design.Recipe
  federated: design.Recipe
  private: design.Recipe


def recipes(
    corpus: str,
    *,
    shards: str,
    settings: Mapping[str, Any] = {},
    parent_by_seed: bool = False,
) -> Heads:
  """Recipes of gin/experiments/CORPUS_whisper_*.gin.

  Args:
    corpus: Begins the experiments' names.
    shards: Names of the folders of features, as `design.Suite.shards`.
    settings: Macros of the model to gin values.
    parent_by_seed: As of `design.Recipe`.
  """
  name = f'{corpus}_whisper'
  model = design.Model(
      settings=settings,
      evaluation=f'{name}_evaluate',
      shards=shards,
      pretrained=PRETRAINED,
  )
  seed = design.Recipe(
      name='head',
      program=design.CENTRAL,
      experiment=f'{name}_seed',
      model=model,
      speakers='public',
  )
  federated = design.Recipe(
      name='head_federated',
      program=design.FEDERATED,
      experiment=f'{name}_federated',
      model=model,
      parent=seed,
      parent_by_seed=parent_by_seed,
  )
  private = federated.but('head_private', experiment=f'{name}_dp')
  return Heads(seed, federated, private)
