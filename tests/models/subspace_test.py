"""Tests of tff_asr.models.subspace."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import fakes
from tff_asr.models import conformer
from tff_asr.models import conv
from tff_asr.models import ctc
from tff_asr.models import subspace
from tff_asr.models import weights as weights_lib

_KERNEL = 'block_00/kernel'


def _conv_model(**options) -> ctc.CtcModel:
  """Kernels of 560, 24, 24 and (the head's) 8 inputs."""
  encoder = conv.build(**dict(num_blocks=2, dim=8, kernel_size=3) | options)
  return ctc.build(encoder=encoder, tokenizer=fakes.tiny_tokenizer())


def _utterances(*lengths: int) -> list[tf.Tensor]:
  return [
      tf.random.stateless_normal([length, 80], [length, 1])
      for length in lengths
  ]


def _fit(model, weights, utterances):
  return subspace.fit(model, weights, utterances, feature_dim=80)


def _batch() -> tuple[tf.Tensor, ...]:
  features = tf.random.stateless_normal([2, 40, 80], [3, 1])
  labels = tf.constant([[1, 2, 0], [3, 0, 0]])
  return features, tf.constant([40, 31]), labels, tf.constant([2, 1])


def _random_like(weights: weights_lib.Weights) -> weights_lib.Weights:
  """Other values, also of norms and biases."""
  generator = np.random.default_rng(5)
  return weights_lib.to_tensors(weights_lib.Weights(
      (name, value + 0.1 * generator.normal(size=value.shape).astype('f4'))
      for name, value in weights.items()
  ))


class SubspaceModelTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.plain = _conv_model()
    cls.model = subspace.build(model=cls.plain, rank=6)
    cls.weights = _random_like(cls.plain.initialize([1, 2]))
    cls.trained, cls.shares = _fit(
        cls.model, cls.weights, _utterances(50, 33, 70)
    )

  def basis(self, name=_KERNEL) -> np.ndarray:
    return self.trained[f'{name}/basis'].numpy()

  def test_only_coordinates_and_small_weights_are_trained(self):
    specs, plain = self.model.specs, self.plain.specs
    self.assertEqual(
        self.model.kernels,
        (_KERNEL, 'block_01/kernel', 'front/kernel', 'head/kernel'),
    )
    fixed = subspace.fixed_weights(self.model)
    self.assertLen(fixed, 8)
    live = weights_lib.without(fixed, specs)
    # Kernels of 16 outputs, and 5 of the head, of 6 coordinates each.
    self.assertEqual(
        weights_lib.num_parameters(live),
        6 * (3 * 16 + 5)
        + weights_lib.num_parameters(
            weights_lib.without(self.model.kernels, plain)
        ),
    )
    self.assertEqual(
        {name: tuple(value.shape) for name, value in self.trained.items()},
        {name: spec.shape for name, spec in specs.items()},
    )
    self.assertEqual([*self.trained], sorted(specs))

  def test_other_models_have_no_fixed_weights_and_are_plain(self):
    self.assertEqual(subspace.fixed_weights(self.plain), [])
    self.assertIs(subspace.plain_model(self.plain), self.plain)
    self.assertIs(subspace.plain_model(self.model), self.plain)
    self.assertIs(
        subspace.plain_weights(self.plain, self.weights), self.weights
    )

  def test_kernels_with_no_more_inputs_than_directions_stay_whole(self):
    for rank, kernels in (
        (7, self.model.kernels),
        (8, self.model.kernels[:3]),
        (23, self.model.kernels[:3]),
        (24, ('front/kernel',)),
    ):
      found = subspace.build(model=self.plain, rank=rank).kernels
      self.assertEqual(found, kernels, rank)

  def test_merging_returns_what_was_split(self):
    merged = self.model.merge(self.trained)
    self.assertEqual([*merged], [*self.weights])
    for name, value in self.weights.items():
      np.testing.assert_allclose(merged[name], value, atol=3e-7, err_msg=name)
    # A part of the kernel is in either.
    for part in ('rest', 'coordinates'):
      self.assertGreater(
          np.linalg.norm(self.trained[f'{_KERNEL}/{part}']), 0.1
      )

  def test_rest_is_orthogonal_to_the_subspace(self):
    rest = self.trained[f'{_KERNEL}/rest'].numpy().reshape(24, 16)
    np.testing.assert_allclose(self.basis().T @ rest, 0, atol=1e-6)
    np.testing.assert_allclose(
        self.trained[f'{_KERNEL}/coordinates'],
        self.basis().T @ self.weights[_KERNEL].numpy().reshape(24, 16),
        atol=1e-6,
    )

  def test_the_start_is_the_seed_model(self):
    features, lengths, *labels = _batch()
    expected, _ = self.plain.logits(self.weights, features, lengths)
    found, _ = self.model.logits(self.trained, features, lengths)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(
        self.model.loss(self.trained, features, lengths, *labels),
        self.plain.loss(self.weights, features, lengths, *labels),
        rtol=1e-5,
    )

  def test_initial_weights_are_those_of_the_model(self):
    drawn = self.model.initialize(tf.constant([1, 2]))
    self.assertEqual([*drawn], sorted(self.model.specs))
    basis = drawn[f'{_KERNEL}/basis'].numpy()
    np.testing.assert_allclose(basis.T @ basis, np.eye(6), atol=1e-6)
    expected = self.plain.initialize([1, 2])
    for name, value in self.model.merge(drawn).items():
      np.testing.assert_allclose(value, expected[name], atol=3e-7)

  def gradients(self, model, weights):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      losses = model.loss(weights, *_batch(), tf.constant([1, 1]))
      loss = tf.reduce_mean(losses)
    return tape.gradient(loss, weights)

  def test_a_step_on_coordinates_is_the_projected_step(self):
    whole = self.gradients(self.plain, self.weights)
    found = self.gradients(self.model, self.trained)
    for name in self.model.kernels:
      gradient = whole[name].numpy().reshape(-1, whole[name].shape[-1])
      self.assertGreater(np.linalg.norm(gradient), 1e-3)
      np.testing.assert_allclose(
          found[f'{name}/coordinates'],
          self.basis(name).T @ gradient,
          atol=1e-5,
      )
    np.testing.assert_allclose(
        found['head/bias'], whole['head/bias'], atol=1e-5
    )
    stepped = self.model.merge(weights_lib.updated(self.trained, {
        f'{name}/coordinates': self.trained[f'{name}/coordinates']
        - 0.3 * found[f'{name}/coordinates']
        for name in self.model.kernels
    }))
    basis = self.basis()
    projected = basis @ basis.T @ whole[_KERNEL].numpy().reshape(24, 16)
    np.testing.assert_allclose(
        stepped[_KERNEL].numpy().reshape(24, 16),
        self.weights[_KERNEL].numpy().reshape(24, 16) - 0.3 * projected,
        atol=1e-5,
    )
    # The projection leaves out most of it: the test can fail.
    left = whole[_KERNEL].numpy().reshape(24, 16) - projected
    self.assertGreater(np.linalg.norm(left), 0.3 * np.linalg.norm(projected))

  def test_all_directions_are_the_training_of_the_whole_kernel(self):
    model = dataclasses.replace(self.model, kernels=(_KERNEL,), rank=24)
    trained, shares = _fit(model, self.weights, _utterances(50, 33))
    self.assertAlmostEqual(shares[_KERNEL], 1.0)
    np.testing.assert_allclose(
        trained[f'{_KERNEL}/rest'], np.zeros([3, 8, 16]), atol=1e-6
    )
    whole = self.gradients(self.plain, self.weights)[_KERNEL]
    found = self.gradients(model, trained)[f'{_KERNEL}/coordinates']
    step = trained[f'{_KERNEL}/coordinates'] - 0.3 * found
    np.testing.assert_allclose(
        model.merge({**trained, f'{_KERNEL}/coordinates': step})[_KERNEL],
        self.weights[_KERNEL] - 0.3 * whole,
        atol=1e-5,
    )

  def test_directions_are_orthonormal_and_the_same_each_time(self):
    for name, share in self.shares.items():
      basis = self.basis(name)
      np.testing.assert_allclose(basis.T @ basis, np.eye(6), atol=1e-6)
      self.assertBetween(share, 0.05, 1.0)
    small = dataclasses.replace(self.model, kernels=(_KERNEL,))
    again, shares = _fit(small, self.weights, iter(_utterances(50, 33, 70)))
    self.assertEqual(shares, {_KERNEL: self.shares[_KERNEL]})
    np.testing.assert_array_equal(again[f'{_KERNEL}/basis'], self.basis())
    other, _ = _fit(small, self.weights, _utterances(51, 33))
    self.assertGreater(
        np.abs(other[f'{_KERNEL}/basis'] - self.basis()).max(), 0.01
    )

  @parameterized.parameters('front/kernel', _KERNEL)
  def test_directions_are_principal_components_of_patches(self, name):
    # The inputs of the convolution: features [T, 80] normalised over the
    # utterance, scaled and padded by 2 frames; or the layer norm of the
    # front end's outputs, padded by 1 frame.
    size, stride = {'front/kernel': (7, 3), _KERNEL: (3, 1)}[name]
    moment = 0.0
    for features in _utterances(50, 33, 70):
      if name == _KERNEL:
        outputs, _ = self.plain.encoder.layer_outputs(
            self.weights, features[tf.newaxis], tf.constant([len(features)]),
            None,
        )
        inputs = outputs[0].numpy()[0].astype(np.float64)
        inputs -= inputs.mean(axis=1, keepdims=True)
        inputs /= np.sqrt(inputs.var(axis=1, keepdims=True) + 1e-5)
        inputs *= self.weights['block_00/norm/scale'].numpy()
        inputs += self.weights['block_00/norm/bias'].numpy()
      else:
        inputs = features.numpy().astype(np.float64)
        inputs = (inputs - inputs.mean()) / inputs.std()
        inputs *= self.weights['front/input_scale'].numpy()
        inputs += self.weights['front/input_bias'].numpy()
      pad = (size - stride) // 2
      padded = np.pad(inputs, [(pad, pad), (0, 0)])
      patches = np.stack([
          padded[start : start + size].ravel()
          for start in range(0, len(padded) - size + 1, stride)
      ])
      moment = moment + patches.T @ patches
    values, vectors = np.linalg.eigh(moment)
    expected = vectors[:, -6:]
    basis = self.basis(name)
    np.testing.assert_allclose(
        basis @ basis.T, expected @ expected.T, atol=1e-3
    )
    self.assertAlmostEqual(
        self.shares[name], values[-6:].sum() / values.sum(), places=4
    )
    # Columns are ordered by falling eigenvalue.
    np.testing.assert_allclose(
        np.diag(basis.T @ moment @ basis), values[::-1][:6], rtol=1e-3
    )

  def test_principal_directions_by_hand(self):
    # Along (3, 4, 0) / 5 the moment is 50, along (4, -3, 0) / 5 it is 25, and
    # along the last axis 100.
    moment = np.array([[34.0, 12, 0], [12, 41, 0], [0, 0, 100]])
    basis, share = subspace.principal_directions(moment, rank=2)
    np.testing.assert_allclose(
        basis, [[0, 0.6], [0, 0.8], [1, 0]], atol=1e-6
    )
    self.assertAlmostEqual(share, 150 / 175)
    # The largest entry is positive, whatever the sign of the others.
    basis, _ = subspace.principal_directions(
        np.array([[16.0, -12], [-12, 9]]), rank=1
    )
    np.testing.assert_allclose(basis, [[0.8], [-0.6]], atol=1e-6)

  def test_matrices_of_a_transformer_and_rounded_kernels_have_subspaces(self):
    models = {
        '/w[12]$': fakes.tiny_model(num_blocks=1),
        'front/kernel_|/kernel$': ctc.build(
            encoder=conformer.build(
                num_blocks=1, dim=8, mlp_dim=16, num_heads=2, kernel_size=3,
                front_channels=2,
            ),
            tokenizer=fakes.tiny_tokenizer(),
        ),
        r'block_.*/kernel$': _conv_model(activation_dtype='bfloat16'),
    }
    for kernels, plain in models.items():
      model = subspace.build(model=plain, rank=4, kernels=kernels)
      weights = plain.initialize([1, 2])
      trained, shares = _fit(model, weights, _utterances(50, 33))
      self.assertGreaterEqual(len(shares), 2, kernels)
      features, lengths, *_ = _batch()
      np.testing.assert_allclose(
          model.logits(trained, features, lengths)[0],
          plain.logits(weights, features, lengths)[0],
          atol=2e-2 if 'block' in kernels else 1e-5,
      )

  @parameterized.named_parameters(
      ('rank', dict(rank=0), 'subspace_rank'),
      ('large_rank', dict(rank=560), 'below the 560 inputs'),
      ('no_kernel', dict(rank=2, kernels='/w9$'), "'/w9\\$' is in no name"),
      ('no_pattern', dict(rank=2, kernels='('), 'is not a regular expression'),
      ('utterances', dict(rank=2, num_utterances=0), 'subspace_utterances'),
  )
  def test_bad_arguments(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      subspace.build(model=self.plain, **options)

  def test_a_weight_that_multiplies_nothing_is_refused(self):
    specs = {**self.plain.specs, 'more/kernel': weights_lib.matrix_spec(9, 2)}
    plain = dataclasses.replace(self.plain, specs=specs)
    model = subspace.build(model=plain, rank=6)
    with self.assertRaisesRegex(ValueError, 'more/kernel is in no convolution'):
      _fit(model, plain.initialize([1, 2]), _utterances(50))

  def test_inputs_that_are_not_finite_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'front/kernel are not finite'):
      _fit(
          dataclasses.replace(self.model, kernels=('front/kernel',)),
          self.weights,
          [tf.fill([40, 80], np.nan)],
      )


if __name__ == '__main__':
  absltest.main()
