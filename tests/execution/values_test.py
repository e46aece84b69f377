"""Tests of tff_asr.execution.values: which values fit a type."""

import collections

from absl.testing import parameterized
import attrs
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2
import tensorflow_federated as tff

from tff_asr.execution import values

_PAIR = tff.to_type(
    collections.OrderedDict(
        a=tff.TensorType(np.float32, [2]), b=tff.TensorType(np.int32)
    )
)
_EXAMPLES = tff.SequenceType(_PAIR)

Pair = collections.namedtuple('Pair', ['a', 'b'])


@attrs.define
class _Attrs:
  a: object
  b: object


def _dataset(dtype=tf.float32):
  return tf.data.Dataset.from_tensors(
      collections.OrderedDict(a=tf.ones([2], dtype), b=tf.constant(3))
  )


class TypeFlattenerTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('dict', dict(a=[1.0, 2.0], b=3)),
      ('other_order', dict(b=3, a=[1.0, 2.0])),
      ('tuple', ([1.0, 2.0], 3)),
      ('named_tuple', Pair([1.0, 2.0], 3)),
      ('attrs', _Attrs([1.0, 2.0], 3)),
      ('struct', tff.structure.Struct([('a', [1.0, 2.0]), ('b', 3)])),
      ('arrays', dict(a=np.float32([1, 2]), b=np.int32(3))),
  )
  def test_flattens_in_the_order_of_the_type_and_packs(self, value):
    flattener = values.TypeFlattener(_PAIR)
    leaves = flattener.flatten(value)
    np.testing.assert_array_equal(leaves[0], [1, 2])
    self.assertEqual(int(leaves[1]), 3)
    self.assertEqual(
        [leaf.dtype for leaf in leaves], [spec.dtype for spec in flattener.specs]
    )
    for leaf, tensor in zip(
        flattener.flatten_to_host(value), leaves, strict=True
    ):
      np.testing.assert_array_equal(leaf, tensor)
      self.assertEqual(leaf.dtype, tensor.dtype)
    packed = flattener.pack(leaves)
    self.assertIsInstance(packed, collections.OrderedDict)
    self.assertEqual(list(packed), ['a', 'b'])
    self.assertEqual(packed['b'], 3)
    self.assertIsInstance(packed['b'], np.int32)

  def test_a_dataset_is_one_variant_and_comes_back(self):
    flattener = values.TypeFlattener(tff.FederatedType(_EXAMPLES, tff.SERVER))
    self.assertEqual(flattener.specs, (tf.TensorSpec([], tf.variant),))
    (element,) = flattener.pack(flattener.flatten(_dataset()))
    np.testing.assert_array_equal(element['a'], [1, 1])

  @parameterized.parameters((None, False), (True, True), (False, False))
  def test_a_dataset_is_not_autotuned_unless_it_says_so(self, given, expected):
    dataset = tf.data.Dataset.range(2)
    if given is not None:
      options = tf.data.Options()
      options.autotune.enabled = given
      dataset = dataset.with_options(options)
    flattener = values.TypeFlattener(tff.SequenceType(np.int64))
    (variant,) = flattener.flatten(dataset)
    found = dataset_options_pb2.Options.FromString(
        tf.raw_ops.GetOptions(input_dataset=variant).numpy()
    )
    self.assertEqual(found.autotune_options.enabled, expected)

  @parameterized.named_parameters(
      # A dataset sorts the keys of a dict.
      (
          'dicts',
          collections.OrderedDict(
              b=np.int32, a=tff.TensorType(np.float32, [None])
          ),
          [
              dict(a=[1.0, 2.0], b=3),
              dict(b=4, a=[5.0, 6.0]),
              dict(a=[7.0], b=8),
          ],
      ),
      ('numbers', np.float32, [1.0, 2.0, 4.0]),
      ('texts', np.str_, ['a', 'bc']),
      ('pairs', (np.int32, tff.TensorType(np.bool_, [2])), [(1, [True] * 2)]),
      ('none', collections.OrderedDict(b=np.int32, a=np.str_), []),
      ('none_of_open_shape', tff.TensorType(np.float32, [None, 3]), []),
  )
  def test_a_list_of_elements_is_a_dataset(self, element_type, elements):
    flattener = values.TypeFlattener(tff.SequenceType(element_type))
    dataset = flattener.pack(flattener.flatten(elements))
    self.assertIsInstance(dataset, tf.data.Dataset)
    found = list(dataset.as_numpy_iterator())
    self.assertLen(found, len(elements))
    for one, other in zip(found, elements):
      if isinstance(other, dict):
        self.assertCountEqual(one, other)
        pairs = [(one[key], other[key]) for key in other]
      else:
        pairs = zip(one, other) if isinstance(other, tuple) else [(one, other)]
      for mine, given in pairs:
        np.testing.assert_array_equal(
            mine, given.encode() if isinstance(given, str) else given
        )

  def test_no_type_has_no_leaves(self):
    self.assertEqual(values.TypeFlattener(None).flatten('anything'), [])

  def test_values_of_numpy_and_texts_stay_on_the_host(self):
    flattener = values.TypeFlattener(tff.to_type(
        [np.str_, np.int64, tff.TensorType(np.float32, [None]), np.bool_]
    ))
    given = 'ü', np.int64(3), np.float32([1, 2]), np.bool_(True)
    text, number, array, other = flattener.flatten_to_host(given)
    self.assertEqual(text, 'ü'.encode())
    self.assertIs(number, given[1])
    self.assertIs(array, given[2])
    self.assertIsInstance(other, tf.Tensor)
    self.assertEqual(values.TypeFlattener(None).flatten_to_host(None), [])

  def test_a_type_without_values_is_refused(self):
    function = tff.FunctionType(None, np.int32)
    with self.assertRaisesRegex(ValueError, 'tensors, structs and sequences'):
      values.TypeFlattener(function)

  @parameterized.named_parameters(
      ('no_container', 3.0, r'argument must be a container .* of float'),
      ('too_few', ([1.0, 2.0],), r"argument must have .* found \[None\]"),
      (
          'other_names',
          dict(a=[1.0, 2.0], c=3),
          r"argument must have .* found \['a', 'c'\]",
      ),
      (
          'not_a_number',
          dict(a=['x', 'y'], b=3),
          r'argument\.a must be float32 of shape \(2,\), .*does not convert',
      ),
      (
          'dtype',
          dict(a=np.float64([1, 2]), b=3),
          r'argument\.a must be float32 .*, found float64 of shape \(2,\)',
      ),
      (
          'shape',
          dict(a=[1.0, 2.0, 3.0], b=3),
          r'argument\.a must be .* found .*\(3,\)',
      ),
  )
  def test_a_value_that_does_not_fit_its_type_is_named(self, value, message):
    flattener = values.TypeFlattener(_PAIR)
    for flatten in (flattener.flatten, flattener.flatten_to_host):
      with self.assertRaisesRegex(TypeError, message):
        flatten(value)

  @parameterized.named_parameters(
      ('number', 3, 'must be a tf.data.Dataset or a list of its .* found int'),
      (
          'element',
          [dict(a=[1.0, 2.0], b=3), dict(a=[1.0], b=3)],
          r'examples\[1\]\.a must be float32 of shape \(2,\), found .*\(1,\)',
      ),
      (
          'elements',
          _dataset(tf.float64),
          'examples must be a dataset of .*float32.*, found one of .*float64',
      ),
  )
  def test_other_datasets_are_named(self, value, message):
    with self.assertRaisesRegex(TypeError, message):
      values.TypeFlattener(_EXAMPLES).flatten(value, name='examples')
