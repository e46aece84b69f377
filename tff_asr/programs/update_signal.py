"""Signal of private training: the norm of the mean clipped update over C.

The model's own client work, local steps and clip, runs on public people, and
nothing is noised, trained or written:

    signal = measure(update, weights=seed_model, client_data=public_people)
    signal.law.signal(20)  # For people who have 20 utterances each.

The seed model was trained on some of the public people, whose gradients are
therefore smaller, and point elsewhere, than those of people that it has not
seen. Take dev speakers, as `--dry_run` does; those of the seed's training data
are better than nothing. Private people must not be measured: the result is
exact.

A person's utterances are cut into groups of u, and the person's update is the
mean over groups, which has the same mean as that of one group and less
variance. `planning.squared_norm_of_mean` is not biased by what is left of it.
"""

from collections.abc import Callable, Collection
import dataclasses
import functools
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.aggregators import dp_mean
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.learning import client_update
from tff_asr.learning import layer_freeze
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import clipping
from tff_asr.privacy import planning
from tff_asr.privacy import queries
from tff_asr.programs import warm_start

# Each count of utterances has its own mean update of each person in memory.
_MAX_ELEMENTS = 2**28
_MAX_PEOPLE, _FEWEST_PEOPLE = 256, 8
# Groups of one person for each count; more of them take longer.
_MAX_GROUPS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientUpdate:
  """What a client of a round sends: local steps, then the clip.

  Attributes:
    model: The model.
    pipeline: Examples to batches.
    local: Settings of the local steps.
    aggregator: As `fed_avg.build` takes it; its clip is measured.
    frozen: As `fed_avg.build` takes it.
  """

  model: client_update.Model
  pipeline: pipeline_lib.Pipeline
  local: client_update.LocalTraining
  aggregator: tff.aggregators.AggregationFactory
  frozen: Collection[str] = ()

  @property
  def trained(self) -> weights_lib.Specs:
    """The weights that are trained."""
    names = layer_freeze.match(self.frozen, self.model.specs)
    return weights_lib.without(names, self.model.specs)

  def read_weights(self, run: str) -> weights_lib.Weights:
    """Returns a seed run's weights for this model; see `warm_start`."""
    return warm_start.extend_weights(
        run,
        model=self.model,
        tokens=self.pipeline.tokenizer.identity,
        public_sha256=self.pipeline.front_end.public_sha256,
    )

  @property
  def has_clip(self) -> bool:
    """Whether updates are clipped by a query whose noise the server adds."""
    return getattr(self.aggregator, 'build_query', None) is not None


def one_step(
    model: client_update.Model, pipeline: pipeline_lib.Pipeline
) -> ClientUpdate:
  """Returns one averaged step over all utterances, clipped by layer (`dim`).

  Args:
    model: The model.
    pipeline: Its batches become large enough for all of a person's utterances,
      up to 64; the gradient does not depend on the clip, which is far below it.
  """
  return ClientUpdate(
      model=model,
      pipeline=dataclasses.replace(
          pipeline,
          max_batch_sec=pipeline.chunk_size * pipeline.max_utterance_sec,
          max_padding=1.0,
      ),
      local=client_update.LocalTraining(learning_rate=1.0, num_steps=1),
      aggregator=dp_mean.build(
          build_query=functools.partial(
              queries.PerLayerClipSumQuery,
              l2_norm_clip=0.01,
              noise_multiplier=0.0,
              clipping=clipping.Clipping(split='dim'),
          ),
          cohort_size=1,
      ),
  )


class Measured(NamedTuple):
  """The signal at one number of utterances a person.

  Attributes:
    num_utterances: u.
    num_people: Those who have so many.
    square: Estimate of the squared norm of the mean clipped update over C; near
      zero it may be negative.
    error: Its standard error.
    client_sec: Seconds of one client's update.
  """

  num_utterances: int
  num_people: int
  square: float
  error: float
  client_sec: float

  @property
  def signal(self) -> float:
    return max(0.0, self.square) ** 0.5

  @property
  def signal_error(self) -> float:
    """Standard error of the signal; infinite where none is seen."""
    return self.error / (2 * self.signal) if self.signal else float('inf')


class Signal(NamedTuple):
  """The signal of public people.

  Attributes:
    measured: At 1, 2, 4, ... utterances a person.
    law: Fitted to them.
  """

  measured: tuple[Measured, ...]
  law: planning.SignalLaw

  def clients_per_sec(self, num_utterances: int) -> float:
    """Returns client updates a second, of so many utterances each.

    Measured one client at a time; beyond what was measured, the time grows with
    the utterances.
    """
    counts = [each.num_utterances for each in self.measured]
    seconds = [each.client_sec for each in self.measured]
    most = counts[-1]
    found = np.interp(min(num_utterances, most), counts, seconds)
    return float(1 / (found * max(1.0, num_utterances / most)))

  def table(self) -> list[list[str]]:
    """Returns a table of what was measured and of the law."""
    return [
        ['utterances', 'people', 'signal / C', 'standard error', 'a sqrt(u)'],
        *(
            [
                f'{each.num_utterances:,}', f'{each.num_people:,}',
                f'{each.signal:.3f}', f'{each.signal_error:.3f}',
                f'{self.law.signal(each.num_utterances):.3f}',
            ]
            for each in self.measured
        ),
    ]


def measure(
    update: ClientUpdate,
    *,
    weights: weights_lib.Weights,
    client_data: client_data_lib.SpeechClientData,
    seed: int = 1,
) -> Signal:
  """Measures the signal on public people.

  Args:
    update: What a client does.
    weights: The model that a run would start from.
    client_data: Public people; those after the first 256, or after what fits in
      a gigabyte of updates, are not used.
    seed: Of the division of utterances, of masks and of dropout.

  Raises:
    ValueError: There are fewer than two people, or the aggregator has no clip.
  """
  if not update.has_clip:
    raise ValueError(
        'the signal is measured against a clip of the server: take a file of '
        'gin/privacy other than none and distributed.'
    )
  num_elements = weights_lib.num_parameters(update.trained)
  most = min(_MAX_PEOPLE, max(_FEWEST_PEOPLE, _MAX_ELEMENTS // num_elements))
  # Drawn, since ids in order may be of one source.
  generator = np.random.default_rng(seed)
  ids = generator.permutation(client_data.client_ids)[:most]
  if len(ids) < 2:
    raise ValueError(
        f'{client_data.corpus.path} has {len(ids)} speakers: a mean over '
        'people needs more.'
    )
  rows = [
      records.locations_of(client) for client in client_data.locate_clients(ids)
  ]
  orders = [
      generator.permutation(client_data.num_utterances(each)) for each in ids
  ]
  # The most that so many people have, so that the last counts have some, too.
  counts = sorted(map(len, orders))
  largest = counts[-min(_FEWEST_PEOPLE, len(counts))]
  compute = _build_clipped_update(update, client_data)
  weights = weights_lib.to_tensors(weights)
  seeds = tf.constant(weights_lib.seed_pair(seed))
  # Traces, which is no part of a client's time.
  compute(weights, rows[0], orders[0], seeds)
  measured = []
  for number in (2**power for power in range(largest.bit_length())):
    means, num_groups, seconds = [], 0, 0.0
    for row, order in zip(rows, orders):
      groups = [
          order[start : start + number]
          for start in range(0, len(order) - number + 1, number)
      ][:_MAX_GROUPS]
      if not groups:
        continue
      started = time.monotonic()
      total = sum(compute(weights, row, each, seeds).numpy() for each in groups)
      seconds += time.monotonic() - started
      num_groups += len(groups)
      means.append(total / len(groups))
    square, error = planning.squared_norm_of_mean(np.stack(means))
    measured.append(
        Measured(number, len(means), square, error, seconds / num_groups)
    )
  law = planning.fit_law(
      [each.num_utterances for each in measured],
      squares=[each.square for each in measured],
      errors=[each.error for each in measured],
  )
  return Signal(tuple(measured), law)


def _build_clipped_update(
    update: ClientUpdate, client_data: client_data_lib.SpeechClientData
) -> Callable[..., tf.Tensor]:
  """Builds the graph function of a client's clipped update over C.

  Args:
    update: What a client does.
    client_data: Reads records.

  Returns:
    A function from weights, all record locations of a client, the numbers of
    those to train on, int32 [n], and a seed to the update, float32 [D].
  """
  pipeline = dataclasses.replace(update.pipeline, read=client_data.read)
  frozen = layer_freeze.match(update.frozen, update.model.specs)
  take_steps = client_update.build_local_steps(
      update.model, pipeline, update.local, frozen
  )
  query = update.aggregator.build_query(
      weights_lib.tensor_specs(update.trained)
  )

  @tf.autograph.experimental.do_not_convert
  def clip(weights, trained):
    state = query.initial_global_state()
    delta = tf.nest.map_structure(
        tf.subtract,
        weights_lib.without(frozen, weights),
        weights_lib.without(frozen, trained),
    )
    clipped, _ = query.clip(query.derive_sample_params(state), delta)
    factor = query.sum_unit(state) / tf.cast(state.l2_norm_clip, tf.float64)
    parts = [
        tf.reshape(tf.cast(part, tf.float64) * factor, [-1])
        for part in tf.nest.flatten(query.updates_of(clipped))
    ]
    return tf.cast(tf.concat(parts, axis=0), tf.float32)

  # AutoGraph converts the loop over batches.
  @tf.function(
      input_signature=[
          weights_lib.tensor_specs(update.model.specs),
          records.LOCATION_SPECS,
          tf.TensorSpec([None], tf.int32),
          tf.TensorSpec([2], tf.int32),
      ]
  )
  def clipped_update(weights, rows, chosen, seed):
    client = pipeline.select(
        pipeline.open_client(
            tf.data.Dataset.from_tensor_slices(rows), seed=seed
        ),
        chosen,
        num_epochs=update.local.num_epochs,
    )
    trained, _ = take_steps(weights, client)
    return clip(weights, trained)

  return clipped_update
