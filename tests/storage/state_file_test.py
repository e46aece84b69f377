"""Tests of tff_asr.storage.state_file."""

import collections
import os

from absl.testing import parameterized
import attrs
import ml_dtypes
import numpy as np
import tensorflow as tf

from tests import cases
from tff_asr.storage import model_file
from tff_asr.storage import state_file
from tff_asr.storage import tensor_file


_State = collections.namedtuple('_State', ['process', 'key', 'round_num'])


@attrs.define
class _Process:
  weights: object
  empty: tuple = ()


def _state(scale: float = 1.0) -> _State:
  """A state with all kinds of structures."""
  return _State(
      process=_Process(
          collections.OrderedDict(
              w=np.arange(6, dtype=np.float32).reshape(2, 3) * scale,
              b=[np.float64(0.5), (np.int64(3),)],
          )
      ),
      key=np.array([1, -2, 3, 4], np.int32),
      round_num=7,
  )


def _assert_same(test, left, right):
  """Checks that states are equal bit for bit, types included."""
  tf.nest.assert_same_structure(left, right)
  for value, other in zip(tf.nest.flatten(left), tf.nest.flatten(right)):
    test.assertIs(type(value), type(other))
    if hasattr(value, 'dtype'):
      test.assertEqual(value.dtype, other.dtype)
      test.assertEqual(value.shape, other.shape)
      test.assertEqual(value.tobytes(), other.tobytes())
    else:
      test.assertEqual(repr(value), repr(other))


class StateFileTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.root, 'x.safetensors')

  def _round_trip(self, state, structure=None):
    state_file.write(self.path, state)
    return state_file.read(
        self.path, structure=state if structure is None else structure
    )

  @parameterized.named_parameters(
      ('float32', np.array([1.5, -0.0, np.nan, np.inf, 1e-45], np.float32)),
      ('nan_payload', np.array([0x7FC00123], np.uint32).view(np.float32)),
      ('bfloat16', np.array([[1.5], [-3]], ml_dtypes.bfloat16)),
      ('uint32', np.array([2**32 - 1], np.uint32)),
      ('int64', np.array([-(2**63)])),
      ('bool', np.array([True, False])),
      ('empty', np.zeros([0, 3], np.float32)),
      ('array_scalar', np.array(3, np.int64)),
      ('transposed', np.arange(6).reshape(2, 3).T),
      ('strided', np.arange(10)[::3]),
      ('numpy_scalar', np.float32(0.1)),
      ('numpy_bool', np.bool_(True)),
      ('int', -(10**40)),
      ('float', float('nan')),
      ('small_float', 5e-324),
      ('bool_python', True),
      ('str', 'naïve \ud800 \n'),
      ('bytes', b'\x00\xff'),
      ('none', None),
  )
  def test_leaf_round_trips_bit_for_bit(self, leaf):
    _assert_same(self, self._round_trip({'x': leaf}), {'x': leaf})

  def test_structure_round_trips(self):
    state = _state()
    loaded = self._round_trip(state)
    self.assertIsInstance(loaded, _State)
    self.assertIsInstance(loaded.process, _Process)
    self.assertIsInstance(loaded.process.weights, collections.OrderedDict)
    self.assertEqual(loaded.process.empty, ())
    _assert_same(self, loaded, state)

  def test_loaded_arrays_can_be_written_to(self):
    self._round_trip(_state()).key[0] = 5

  def test_tensors_come_back_as_their_numpy_values(self):
    state = {
        'matrix': tf.constant([[1.0, 2.0]]),
        'scalar': tf.constant(3),
        'half': tf.constant([1.5], tf.bfloat16),
        'variable': tf.Variable([1.0]),
    }
    loaded = self._round_trip(state)
    self.assertEqual(
        tf.nest.map_structure(type, loaded),
        {
            'matrix': np.ndarray,
            'scalar': np.int32,
            'half': np.ndarray,
            'variable': np.ndarray,
        },
    )
    for name, value in state.items():
      np.testing.assert_array_equal(loaded[name], value.numpy())

  def test_tensor_and_array_of_one_type_are_interchangeable(self):
    loaded = self._round_trip(
        {'x': tf.constant([1.0])}, {'x': np.zeros([1], np.float32)}
    )
    self.assertEqual(loaded, {'x': np.float32([1])})

  @parameterized.named_parameters(
      ('shape', {'a': np.zeros(3)}, 'a: float64[2] in the file, float64[3] in'),
      ('dtype', {'a': np.zeros(2, np.float32)}, 'float32[2] in the program'),
      ('kind', {'a': 1}, 'int in the program'),
      ('missing', {'a': np.zeros(2), 'b': 1}, 'b: absent in the file, int in'),
      ('renamed', {'c': np.zeros(2)}, 'a: float64[2] in the file, absent in'),
  )
  def test_other_structure_is_refused_with_the_difference(
      self, structure, message
  ):
    state_file.write(self.path, {'a': np.zeros(2)})
    with self.assertRaises(state_file.StateMismatchError) as context:
      state_file.read(self.path, structure=structure)
    self.assertIn(message, str(context.exception))

  def test_only_the_first_differences_are_shown(self):
    state_file.write(self.path, [1] * 9)
    with self.assertRaisesRegex(state_file.StateMismatchError, 'and 5 more'):
      state_file.read(self.path, structure=[1.0] * 9)

  @parameterized.named_parameters(
      ('object', {'x': object()}, "'x' is of type object, which"),
      ('object_array', {'x': np.array([b'a'], object)}, r'ndarray \(object\)'),
      ('text_array', {'x': np.array(['a'])}, r'ndarray \(<U1\)'),
      ('text_tensor', {'x': tf.constant('a')}, r'EagerTensor \(.*string'),
      ('same_path', {'a/b': 1, 'a': {'b': 2}}, "path 'a/b'"),
  )
  def test_other_leaves_are_refused(self, state, message):
    with self.assertRaisesRegex(ValueError, message):
      state_file.write(self.path, state)
    self.assertFalse(os.path.exists(self.path))

  def test_leaves_are_read_without_a_structure(self):
    state_file.write(
        self.path, {'model': {'w': np.ones(2), 'b': 1}, 'model2': 3}
    )
    leaves = state_file.read_leaves(self.path)
    self.assertEqual(list(leaves), ['model/b', 'model/w', 'model2'])
    self.assertEqual(leaves['model/b'], 1)

  def test_a_model_is_not_a_state(self):
    model_file.write(self.path, {'w': np.zeros(2)}, tokens='')
    with self.assertRaisesRegex(
        tensor_file.DamagedFileError, 'is not a state of this project'
    ):
      state_file.read(self.path, structure={'w': np.zeros(2)})
