"""Tests of tools/parity that need no JAX: its converter, its table, a run."""

from unittest import mock

from absl.testing import parameterized
import numpy as np

from tests import cases
from tff_asr.models import ctc
from tff_asr.models import transformer
from tff_asr.models import weights as weights_lib
from tff_asr.storage import run_dir
from tff_asr.text import tokenizer as tokenizer_lib
from tools.parity import clients
from tools.parity import comparison
from tools.parity import flax_weights


def _tree(num_blocks: int = 2) -> dict:
  """The authors' parameters at width 4, MLP 6 and 5 bins, all different."""
  random = np.random.default_rng(0)
  draw = lambda *shape: random.normal(size=shape).astype(np.float32)
  norm = lambda size: {'scale': draw(size), 'bias': draw(size)}
  block = lambda: {
      'ln1': norm(4), 'ln2': norm(4),
      'wqkv': {'kernel': draw(4, 12)}, 'wf': {'kernel': draw(4, 4)},
      'w1': {'kernel': draw(4, 6)}, 'w2': {'kernel': draw(6, 4)},
  }
  return {
      'conv': {'kernel': draw(7, 5, 8), 'bias': draw(8)},
      'ln': norm(1),
      **{f'tf_blocks_{number}': block() for number in range(num_blocks)},
      'ln_final': norm(4),
      'linear': {'kernel': draw(4, 30), 'bias': draw(30)},
  }


def _model(num_blocks: int = 2) -> ctc.CtcModel:
  return ctc.build(
      encoder=transformer.build(
          num_blocks=num_blocks, dim=4, mlp_dim=6, num_heads=2, feature_dim=5
      ),
      tokenizer=tokenizer_lib.CharTokenizer(),
  )


class FlaxWeightsTest(cases.TestCase):

  @parameterized.parameters(1, 2, 101)
  def test_names_and_shapes_are_our_model_s(self, num_blocks):
    weights = flax_weights.from_flax(_tree(num_blocks))
    self.assertEqual(
        {name: value.shape for name, value in weights.items()},
        {
            name: spec.shape for name, spec in _model(num_blocks).specs.items()
        },
    )
    self.assertEqual(list(weights), sorted(weights))

  def test_weights_convert_to_our_names_and_back(self):
    tree = _tree(11)
    weights = flax_weights.from_flax(tree)
    for ours, theirs in (
        ('front/input_scale', tree['ln']['scale']),
        ('front/kernel', tree['conv']['kernel']),
        ('block_10/wqkv', tree['tf_blocks_10']['wqkv']['kernel']),
        ('block_02/ln2/bias', tree['tf_blocks_2']['ln2']['bias']),
        ('norm/scale', tree['ln_final']['scale']),
        ('head/bias', tree['linear']['bias']),
    ):
      np.testing.assert_array_equal(weights[ours], theirs, ours)
    flat = flax_weights.flatten(tree)
    for back in (
        flax_weights.to_flax(weights),
        # From tensors, and from a flat tree.
        flax_weights.to_flax(weights_lib.to_tensors(weights)),
        flax_weights.to_flax(flax_weights.from_flax(flat)),
    ):
      back = flax_weights.flatten(back)
      self.assertEqual(back.keys(), flat.keys())
      for name, value in flat.items():
        np.testing.assert_array_equal(back[name], value, name)

  def test_unknown_weights_are_named(self):
    tree = _tree()
    for name in ('tf_blocks_0/wqkv/bias', 'conv/scale', 'tf_blocks_0/w3/scale'):
      with self.assertRaisesRegex(ValueError, f'{name} is not a parameter'):
        flax_weights.from_flax(flax_weights.flatten(tree) | {name: 1})
    for name in ('block_00/mlp/wqkv', 'prediction/kernel', 'block_00/w1/x'):
      with self.assertRaisesRegex(ValueError, f'{name} is not a weight'):
        flax_weights.to_flax({name: 1})
    del tree['tf_blocks_0']
    with self.assertRaisesRegex(ValueError, 'no tf_blocks_0'):
      flax_weights.from_flax(tree)

  def test_a_checkpoint_becomes_a_run(self):
    tree = flax_weights.flatten(_tree())
    flax_weights.write_run(tree, output_dir=self.path('run'))
    found = run_dir.read_model(
        self.path('run'), model=_model(), tokens=tokenizer_lib.ENGLISH
    )
    np.testing.assert_array_equal(
        found['block_01/w2'], tree['tf_blocks_1/w2/kernel']
    )
    with self.assertRaisesRegex(ValueError, 'has 30 outputs, not 31'):
      flax_weights.write_run(
          tree, output_dir=self.path('other'), additional_chars='-*'
      )


class ClientsTest(cases.TestCase):

  @parameterized.parameters(1, 2)
  def test_batches_are_those_of_the_order_by_a_twin(self, repeats):
    lengths = np.random.default_rng(1).permutation(
        np.arange(2000, 2000 + 80 * 150, 150)
    )
    listed = [
        clients.Utterance(f'u{number:02}', 'no', np.zeros([length], np.int16))
        for number, length in enumerate(lengths)
    ]
    path = clients.write_list(self.path('.'), 'speaker', listed)
    order = clients.order(path, repeats=repeats)
    self.assertEqual(
        sorted(order), sorted(repeats * [each.utterance_id for each in listed])
    )
    samples = {
        each.utterance_id: len(each.waveform) for each in listed
    }
    expected, most = [], 30 * 16_000
    for start in range(0, len(order), 64):
      batch = []
      for each in sorted(order[start : start + 64], key=samples.get):
        if (len(batch) + 1) * samples[each] > most:
          expected.append(sorted(batch))
          batch = []
        batch.append(each)
      expected.append(sorted(batch))
    with mock.patch.object(clients, 'MAX_BATCH_SEC', 30):
      found = clients.batches(path, repeats=repeats)
    self.assertEqual(found, sorted(expected))
    self.assertGreater(len(found), 1 + repeats)

  def test_one_utterance_of_each_length_is_left(self):
    listed = [
        clients.Utterance(name, '', np.zeros([length], np.int16))
        for name, length in (('a', 3), ('b', 4), ('c', 3))
    ]
    left = clients.of_distinct_lengths(listed)
    self.assertEqual([len(each.waveform) for each in left], [3, 4])


class ComparisonTest(parameterized.TestCase):

  # ||(3, 4) - (6, 8)|| = 5 of ||(6, 8)|| = 10; the largest 4 of 8.
  @parameterized.parameters(
      ('relative', 0.5), ('rms', np.sqrt(12.5)), ('largest', 0.5)
  )
  def test_measures_by_hand(self, measure, expected):
    ours, theirs = (
        {'a': [9], 'x/1': scale * np.array([3.0, 4.0]), 'x/2': np.zeros([0])}
        for scale in (1, 2)
    )
    line, = comparison.compare(
        ours, theirs, [comparison.Row('x', 'this', measure, 4.0)]
    )
    self.assertAlmostEqual(line.found, expected)
    self.assertEqual(line.verdict, 'within')

  def test_lists_and_the_worst_array(self):
    ours = {'text/a': ['x', 'y'], 'text/b': ['z', 'w'], 'texts': ['no']}
    theirs = {'text/a': ['x', 'y'], 'text/b': ['z', 'v'], 'texts': ['other']}
    line, = comparison.compare(
        ours, theirs, [comparison.Row('text', 'words', 'other', 0)]
    )
    self.assertEqual((line.found, line.worst), (0.25, 'text/b'))
    self.assertEqual(line.verdict, 'BEYOND')

  def test_missing_or_nan_results_fail(self):
    row = comparison.Row('x', 'this', 'relative', 1.0)
    one = {'x': np.ones([2])}
    for ours, theirs, message in (
        ({}, {}, 'no side has results of x'),
        (one, {'x/y': np.ones([2])}, 'theirs has no x'),
        ({'x': np.ones([3])}, one, r'x is \(3,\), theirs \(2,\)'),
        ({'x': ['a']}, {'x': ['a', 'b']}, 'x has 1 entries, not 2'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        comparison.compare(ours, theirs, [row])
    for bad in (np.nan, np.inf):
      for pair in ((one, {'x': np.array([1, bad])}),
                   ({'x': np.array([1, bad])}, one)):
        line, = comparison.compare(*pair, [row])
        self.assertEqual(line.verdict, 'BEYOND', pair)
    # Not a number of zeros.
    zero = {'x': np.zeros([2])}
    self.assertEqual(comparison.compare(zero, zero, [row])[0].found, 0)
    self.assertEqual(comparison.compare(one, zero, [row])[0].verdict, 'BEYOND')

  def test_the_table(self):
    rows = [
        comparison.Row('x', 'a number', 'relative', 1e-3),
        comparison.Row('x', 'the same', 'relative', 0, 'because'),
    ]
    text = comparison.markdown(
        comparison.compare({'x': 1.0}, {'x': 2.0}, rows)
    ).splitlines()[2:]
    self.assertEqual(text, [
        '| a number | relative | 5.0e-01 | 1.0e-03 | BEYOND (1, theirs 2) |',
        '| the same | relative | 5.0e-01 |  | choice: because (1, theirs 2) |',
    ])
