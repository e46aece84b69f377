"""The published runs at full size: shapes and graphs, no weights.

The parts of a file's run are built for the specs of its model: the model, the
clips of its layers, and (slow, one graph for runs that agree) the gradient of a
step, clipping, noise and the optimizer's step.
"""

import functools

from absl.testing import parameterized
import pytest
import tensorflow as tf

from tests import experiment_files
from tff_asr import config
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import client_update
from tff_asr.models import best_rq
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import schedules
from tff_asr.privacy import clipping
from tff_asr.privacy import queries
from tff_asr.programs import central
from tff_asr.programs import evaluation

_TRAINING = [
    path
    for path in experiment_files.paths()
    if experiment_files.name(path).startswith(('ls_', 'cv_'))
    and experiment_files.program(path) is not evaluation.evaluate
]
# What decides the graph of a step.
_DECIDING = (
    'ACTIVATION_DTYPE', 'BASE_OPTIMIZER', 'CLIP_SPLIT', 'DIM', 'NUM_BLOCKS',
)


def _part(part, path: str):
  return config.bind(part, gin_files=[path])


def _is_central(path: str) -> bool:
  return experiment_files.program(path) is central.CentralTraining


@functools.lru_cache(maxsize=None)
def _kinds() -> dict[str, str]:
  """A file for each kind of step."""
  found = {}
  for path in _TRAINING:
    _part(experiment_files.program(path), path)
    lines = [
        line
        for line in config.text().splitlines()
        if line.split(' = ')[0] in _DECIDING
    ]
    found.setdefault('\n'.join(sorted(lines)), path)
  return found


class PublishedBuildTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (experiment_files.name(path), path) for path in _TRAINING
  )
  def test_model_and_clips_have_their_sizes(self, path):
    num_blocks, dim, mlp_dim, num_tokens = 36, 768, 3072, 30
    model = _part(ctc.build, path)()
    # By hand: a scale and a bias of the input; the front end, 7 frames of 80
    # bins to twice the width; the blocks' products and two norms; the last
    # norm; the head.
    self.assertEqual(
        weights_lib.num_parameters(model.specs),
        2
        + (7 * 80 + 1) * 2 * dim
        + num_blocks * (4 * dim * dim + 2 * dim * mlp_dim + 4 * dim)
        + 2 * dim
        + (dim + 1) * num_tokens,
    )
    self.assertLen(model.specs, 8 * num_blocks + 8)
    if _is_central(path):
      return
    layers = _part(clipping.Clipping, path)().divide(
        weights_lib.tensor_specs(model.specs)
    )
    self.assertLen(layers, len(model.specs))
    is_global = any(layer.share is None for layer in layers)
    self.assertEqual(is_global, '_dp_' not in experiment_files.name(path))
    if not is_global:
      self.assertAlmostEqual(sum(layer.share**2 for layer in layers), 1)

  @parameterized.named_parameters(
      # Elements of a block, by hand.
      ('MLP', '/w[12]$', 8 * 768**2),
      ('wqkv', '/wqkv$', 3 * 768**2),
      ('wf', '/wf$', 768**2),
      ('norms', '/ln[12]/', 4 * 768),
  )
  def test_groups_of_layers_that_get_noise(self, pattern, elements):
    setting = f"NOISE_FACTORS = {{'{pattern}': 1, '': 0}}"
    page = experiment_files.read('docs/recipe.md')
    self.assertIn(setting.replace(pattern, 'G'), page)
    self.assertIn(f', G = {pattern}', page)
    path = 'gin/experiments/cv_en_dp_from_ls.gin'
    specs = weights_lib.tensor_specs(_part(ctc.build, path)().specs)
    query = config.bind(
        queries.PerLayerClipSumQuery,
        gin_files=[path],
        gin_params=[setting],
    )(record_specs=specs)
    self.assertEqual(query.num_noised, 36 * elements)

  def test_heavier_layers_at_full_size(self):
    path = 'gin/experiments/cv_en_dp_from_ls.gin'
    specs = weights_lib.tensor_specs(_part(ctc.build, path)().specs)
    found = config.bind(
        clipping.Clipping,
        gin_files=[path, 'gin/privacy/per_layer_weighted.gin'],
        gin_params=['NOISE_MULTIPLIER = 0.003072'],
    )()
    shares = {layer.name: layer.share for layer in found.divide(specs)}
    # beta = 2: w1 is four times as large as wf, and counts twice.
    self.assertAlmostEqual(
        (shares['block_07/w1'] / shares['block_07/wf']) ** 2, 8, places=6
    )


@pytest.mark.slow
class PublishedStepTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (experiment_files.name(path), path) for path in _kinds().values()
  )
  def test_a_step_moves_each_weight(self, path):
    model = _part(ctc.build, path)()

    def loss_gradients(weights, batch):
      return client_update.loss_gradients(
          model, weights, batch, num_utterances=tf.constant(1.0)
      )

    # LARS has a velocity, LAMB two moments.
    is_private = not _is_central(path)
    self.check_step(
        path, model, loss_gradients, is_private=is_private,
        moments=2 if is_private else 1,
    )

  @parameterized.parameters(True, False)
  def test_a_step_of_pretraining_moves_each_weight(self, is_private):
    name = 'ssl_private' if is_private else 'ssl_public'
    path = f'gin/experiments/{name}.gin'
    model = _part(best_rq.build, path)()

    def loss_gradients(weights, batch):
      seeds = tf.random.split(batch['seed'], 2)
      masked = model.mask(
          batch['features'], batch['feature_lengths'], seeds[:1]
      )
      with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(model.masked_loss(weights, masked, seeds[1]))
      gradients = tape.gradient(loss, weights)  # None, if one were left out.
      return gradients, loss

    self.check_step(
        path, model, loss_gradients, is_private=is_private, moments=2
    )

  def check_step(self, path, model, loss_gradients, *, is_private, moments):
    optimizer = _part(schedules.scheduled, path)()
    specs = weights_lib.tensor_specs(model.specs)

    def step(weights, batch):
      gradient, loss = loss_gradients(weights, batch)
      if is_private:
        query = _part(queries.PerLayerClipSumQuery, path)(record_specs=specs)
        state = query.initial_global_state()
        clipped = query.preprocess_record(
            query.derive_sample_params(state), gradient
        )
        noised, _, _ = query.get_noised_result(clipped, state)
        gradient = queries.divide_by_cohort_size(noised, 1.0)
      state = optimizer.initialize(specs)
      _, moved = optimizer.next(state, weights, gradient)
      return moved, state, loss

    moved, state, loss = tf.function(
        step,
        input_signature=[specs, pipeline_lib.batch_spec()],
        autograph=False,
    ).get_concrete_function().structured_outputs
    shapes = lambda values: {
        name: (value.shape, value.dtype) for name, value in values.items()
    }
    self.assertEqual(shapes(moved), shapes(specs))
    self.assertEqual(loss.shape, [])
    elements = sum(
        leaf.shape.num_elements()
        for leaf in tf.nest.flatten(state) if leaf.shape.rank
    )
    self.assertAlmostEqual(
        elements / weights_lib.num_parameters(model.specs), moments, places=4
    )
