"""Federated rounds of gin/programs/speaker_gradients.gin are DP-SGD by speaker.

The twin has no clients: it takes the gradient of each of a speaker's utterances
alone, their mean, the clip by layer, the sum over the expected batch, a step.
"""

import functools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests import reference
from tests.learning import federated_twin
from tests.learning import tiny
from tff_asr import config
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.models import best_rq

_FILES = [
    'gin/experiments/quickstart_federated_dp.gin',
    'gin/programs/speaker_gradients.gin',
]
_PER_SPEAKER = 2
_PARAMS = [f'SPEAKER_UTTERANCES = {_PER_SPEAKER}']
_SEED = 7
_RATE = 0.5
# Ann has 3 utterances, Bob 5, Cai 1 and Dee 4; one round has no clients.
_ROUNDS = [['ann', 'bob', 'cai'], [], ['bob', 'dee']]
_BATCH_SIZE = 4


@functools.cache
def _bound(part):
  return config.bind(part, gin_files=_FILES, gin_params=_PARAMS)()


def _pipeline(model) -> pipeline_lib.Pipeline:
  bound = _bound(pipeline_lib.Pipeline)
  options = {}
  if isinstance(model, best_rq.BestRqModel):
    options['tokenizer'] = None
  return fakes.tiny_pipeline(
      model,
      chunk_size=bound.chunk_size,
      max_batch_sec=bound.max_batch_sec,
      max_padding=bound.max_padding,
      **options,
  )


def _loss(model, weights, batch, row: int) -> tf.Tensor:
  """The loss of one utterance of a batch."""
  if isinstance(model, best_rq.BestRqModel):
    masks, dropout = tf.unstack(tf.random.split(batch['seed'], 2))
    seeds = tf.random.split(masks, len(batch['feature_lengths']))
    masked = model.mask(batch['features'], batch['feature_lengths'], seeds)
    one = best_rq.Masked(*(part[row : row + 1] for part in masked))
    return model.masked_loss(weights, one, dropout)[0]
  logits, lengths = model.logits(
      weights,
      batch['features'][row : row + 1],
      batch['feature_lengths'][row : row + 1],
      batch['seed'],
  )
  return tf.nn.ctc_loss(
      batch['labels'][row : row + 1],
      logits,
      batch['label_lengths'][row : row + 1],
      lengths,
      logits_time_major=False,
      blank_index=-1,
  )[0]


class SpeakerGradientsTest(parameterized.TestCase):

  @parameterized.parameters(
      (tiny.recognizer, 20.0),
      # Every frame may begin a span, so that short utterances have some.
      (functools.partial(tiny.predictor, start_prob=0.3), 0.5),
  )
  def test_rounds_equal_dp_sgd_by_speaker_in_numpy(self, build_model, clip):
    model = build_model()
    data = fakes.client_data()
    process = fed_avg.build(
        model=model,
        pipeline=_pipeline(model),
        client_data=data,
        aggregator=fakes.clipped_mean(cohort_size=_BATCH_SIZE, clip=clip),
        server_optimizer=tff.learning.optimizers.build_sgdm(_RATE),
        local=_bound(client_update.LocalTraining),
        seed=_SEED,
    )
    actual, _ = federated_twin.run(process, _ROUNDS)
    num_clipped = num_layers = 0
    for round_num, speakers in enumerate(_ROUNDS):
      before = actual[round_num]
      total = {name: np.zeros(part.shape) for name, part in before.items()}
      for speaker in speakers:
        (batch,) = _pipeline(model).training_batches(
            data.create_tf_dataset_for_client(speaker),
            seed=tf.random.fold_in((_SEED, 0), round_num),
            num_epochs=1,
        ).take(1)
        has = {'ann': 3, 'bob': 5, 'cai': 1, 'dee': 4}[speaker]
        count = min(_PER_SPEAKER, has)
        self.assertEqual(list(batch['example_weights']), [1.0] * count)
        mean = {name: 0.0 for name in before}
        for row in range(count):
          weights = {k: tf.constant(v) for k, v in before.items()}
          with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = _loss(model, weights, batch, row)
          for name, part in tape.gradient(loss, weights).items():
            mean[name] += np.asarray(part, np.float64) / count
        for name, part in reference.clip_layers(mean, clip=clip).items():
          total[name] += part
          num_clipped += np.any(part != mean[name])
          num_layers += 1
      for name, part in total.items():
        # Weights minus weights that moved: a gradient up to their rounding.
        np.testing.assert_allclose(
            actual[round_num + 1][name],
            before[name] - _RATE * part / _BATCH_SIZE,
            rtol=0,
            atol=2e-6,
            err_msg=f'{name} in round {round_num}',
        )
      moved = federated_twin.norm(
          {k: actual[round_num + 1][k] - before[k] for k in before}
      )
      self.assertEqual(moved > 1e-2, bool(speakers))
    # Some layers are clipped and some not, or the test shows little.
    self.assertBetween(num_clipped, 1, num_layers - 1)
