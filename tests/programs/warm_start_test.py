"""Tests of tff_asr.programs.warm_start."""

import contextlib
import dataclasses
import io
import os
import pathlib
import tempfile

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tests import cases
from tests import fakes
from tff_asr.learning import layer_freeze
from tff_asr.models import weights as weights_lib
from tff_asr.programs import warm_start
from tff_asr.storage import run_dir


class ExtendedWeightsTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.model = fakes.tiny_model(num_blocks=1)
    self.weights = self.model.initialize([1, 2])
    with run_dir.RunDir(self.path('run'), configuration='') as folder:
      folder.write_model(
          self.weights, tokens=fakes.tiny_tokenizer().identity
      )

  def extend(self, **specs):
    """Weights for the model with more specs, and what is printed."""
    model = dataclasses.replace(self.model, specs={**self.model.specs, **specs})
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      found = warm_start.extend_weights(
          self.path('run'),
          model=model,
          tokens=fakes.tiny_tokenizer().identity,
      )
    return found, printed.getvalue()

  def test_adds_what_has_no_effect_at_first(self):
    found, printed = self.extend(**{
        'encoder/w/lora_a': weights_lib.matrix_spec(4, 2),
        'encoder/w/lora_b': weights_lib.WeightSpec((2, 3)),
        'encoder/block_00/adapter/bias_up': weights_lib.zeros_spec(5),
    })
    for name, value in self.weights.items():
      np.testing.assert_array_equal(found[name], value)
    self.assertGreater(np.std(found['encoder/w/lora_a']), 0)
    np.testing.assert_array_equal(found['encoder/w/lora_b'], np.zeros([2, 3]))
    self.assertIn('run: new, and without effect at first: 3 tensors', printed)

  def test_a_run_may_start_from_one_that_lacks_them(self):
    more = {
        'encoder/w/lora_a': weights_lib.matrix_spec(4, 2),
        'encoder/w/lora_b': weights_lib.WeightSpec((2, 3)),
    }
    model = dataclasses.replace(self.model, specs={**self.model.specs, **more})
    options = dict(
        run=self.path('run'),
        model=model,
        tokens=fakes.tiny_tokenizer().identity,
    )
    warm_start.check(**options)
    drawn = weights_lib.to_tensors(weights_lib.initialize(
        model.specs, tf.constant([3, 4])
    ))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      found = warm_start.replace_weights(drawn, **options)
    self.assertEqual([*found], [*drawn])
    for name, value in found.items():
      expected = drawn if name in more else self.weights
      np.testing.assert_array_equal(value, expected[name], name)
    self.assertIn(
        f'taken, {len(self.weights)} tensors', printed.getvalue()
    )
    # 4 * 2 + 2 * 3
    self.assertIn(
        'new, and without effect at first: 2 tensors with 14 parameters',
        printed.getvalue(),
    )

  def test_a_run_may_not_start_from_one_that_lacks_another_weight(self):
    more = {'front/more': weights_lib.zeros_spec(3)}
    model = dataclasses.replace(self.model, specs={**self.model.specs, **more})
    with self.assertRaisesRegex(ValueError, 'it has no front/more'):
      warm_start.check(
          self.path('run'),
          model=model,
          tokens=fakes.tiny_tokenizer().identity,
      )

  def test_a_run_that_lacks_nothing_is_read_as_it_is(self):
    found, printed = self.extend()
    self.assertEqual([*found], sorted(self.weights))
    self.assertEqual(printed, '')

  def test_other_weights_are_not_made_up(self):
    with self.assertRaisesRegex(ValueError, 'it has no front/more'):
      self.extend(**{'front/more': weights_lib.zeros_spec(3)})


class NormsTest(absltest.TestCase):

  def test_clipped_shares_by_hand(self):
    root = self.enterContext(tempfile.TemporaryDirectory())
    # Norms of two examples; C = 5 is sqrt(5) x sqrt(1 or 4 of 5 elements) by
    # dim, 2.24 and 4.47, and 3.54 each by uniform. The whole: 5 and 10.
    lines = warm_start.write_norms(
        root,
        {'a': np.array([3.0, 6.0]), 'b': np.array([4.0, 8.0])},
        specs={
            'a': weights_lib.WeightSpec((1,)),
            'b': weights_lib.WeightSpec((2, 2)),
        },
        clips=[5.0],
    )
    with open(
        os.path.join(root, 'gradient_norms.csv'), encoding='utf-8'
    ) as file:
      layer, *rows = file.read().splitlines()
    self.assertEqual(
        layer, 'layer,parameters,median,p90,global_5,uniform_5,dim_5'
    )
    self.assertEqual(
        rows,
        [
            'all,5,7.5,9.5,0.5,0.75,0.75',
            'a,1,4.5,5.7,,0.5,1.0',
            'b,4,6.0,7.6,,1.0,0.5',
        ],
    )
    self.assertEqual(
        lines,
        [
            'C = 5 clips 50% of 2 public gradients; 75% of their layers by '
            'uniform, 75% of their layers by dim (median norm 7.5).'
        ],
    )


class WeightsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.run_dir = os.path.join(
        self.enterContext(tempfile.TemporaryDirectory()), 'run'
    )
    self.folder = run_dir.RunDir(self.run_dir, configuration='')
    self.model = fakes.tiny_model(num_blocks=1)
    self.weights = self.model.initialize([1, 2])

  def pretrained(self, **changes):
    """Writes a pre-training run's model: the encoder and what predicts."""
    encoder = {name: self.weights[name] for name in self.model.encoder.specs}
    encoder['prediction/bias'] = np.zeros([16], np.float32)
    for name, value in changes.items():
      name = name.replace('__', '/')
      encoder.pop(name, None)
      if value is not None:
        encoder[name] = value
    self.folder.write_model(encoder, tokens='')

  def updated(self) -> tuple[weights_lib.Weights, str]:
    """New weights with what the run has, and what was printed."""
    drawn = self.model.initialize([3, 4])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      weights = warm_start.replace_weights(
          drawn, run=self.run_dir, model=self.model, tokens=' abc'
      )
    self.assertEqual(list(weights), list(drawn))
    return weights, printed.getvalue()

  def test_the_whole_model_of_a_trained_run_is_taken(self):
    self.folder.write_model(self.weights, tokens=' abc')
    weights, printed = self.updated()
    for name, value in weights.items():
      np.testing.assert_array_equal(value, self.weights[name])
    self.assertIn('the whole model is taken', printed)

  def test_the_encoder_of_a_pretrained_run_is_taken_by_name(self):
    self.pretrained()
    weights, printed = self.updated()
    encoder = self.model.encoder.specs
    for name, value in weights.items():
      self.assertEqual(
          name in encoder and np.ndim(value) > 1,
          np.ndim(value) > 1 and np.array_equal(value, self.weights[name]),
          name,
      )
    # The head of 8 dimensions and 5 tokens: 8 * 5 + 5.
    count = weights_lib.num_parameters(encoder)
    self.assertRegex(
        printed,
        rf'the encoder is taken, {len(encoder)} tensors with {count:,} '
        r'parameters; new: head/bias, head/kernel \(45 parameters\); '
        'dropped: prediction/bias',
    )
    self.assertEqual(printed.count('\n'), 1)

  def test_other_encoders_are_refused_with_the_difference(self):
    name = sorted(self.model.encoder.specs)[0]
    key = name.replace('/', '__')
    self.pretrained(**{key: None})
    with self.assertRaisesRegex(
        ValueError, f'the encoder of .* does not fit .*it has no {name}'
    ):
      self.updated()
    self.pretrained(**{key: np.zeros([77], np.float32)})
    with self.assertRaisesRegex(ValueError, rf'{name} is \[77\] there and'):
      warm_start.check(self.run_dir, model=self.model, tokens=' abc')

  def test_a_pretrained_run_cannot_be_evaluated_without_fine_tuning(self):
    self.pretrained()
    with self.assertRaisesRegex(ValueError, 'fine-tune it first'):
      run_dir.check_model(self.run_dir, model=self.model, tokens=' abc')


class LayerScoresTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.model = fakes.tiny_model(num_blocks=1)
    specs = self.model.encoder.specs
    # A pre-training run's layers: the encoder's, and some of the predictor.
    self.specs = dict(specs, prediction=specs['norm/bias'])
    self.squares = {
        name: float(number) for number, name in enumerate(sorted(self.specs))
    }

  def frozen(self, **options):
    return warm_start.choose_frozen_layers(
        run=self.root,
        model=self.model,
        freeze=layer_freeze.LayerFreeze(**options),
    )

  def test_the_encoder_s_layers_are_chosen_by_its_scores(self):
    warm_start.write_scores(self.root, self.squares, specs=self.specs)
    specs = self.model.encoder.specs
    for options in (dict(share=0.5), dict(share=0.2, order='highest')):
      self.assertEqual(
          self.frozen(**options),
          layer_freeze.LayerFreeze(**options).choose(self.squares, specs),
      )

  def test_scores_of_another_encoder_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'has no layer_scores.csv'):
      self.frozen(share=0.5)
    del self.squares['norm/bias']
    warm_start.write_scores(self.root, self.squares, specs=self.specs)
    with self.assertRaisesRegex(ValueError, 'has no score of norm/bias'):
      self.frozen(share=0.5)

  def test_a_damaged_table_is_named(self):
    path = self.path('layer_scores.csv')
    for content in (b'a,b\n1,2\n', b'layer,score\nx\n', b'\xff\n', b'"'):
      pathlib.Path(path).write_bytes(content)
      with self.assertRaisesRegex(ValueError, 'layer_scores.csv'):
        self.frozen(share=0.5)
