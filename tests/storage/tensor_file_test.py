"""Tests of tff_asr.storage.tensor_file."""

import os
import pathlib
import tracemalloc

from absl.testing import parameterized
import ml_dtypes
import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from tests import cases
from tests import fakes
from tff_asr.storage import tensor_file

_ARRAYS = {
    'head/kernel': np.arange(6, dtype=np.float32).reshape(2, 3),
    'head/bias': np.array([1.5, np.nan, -np.inf], np.float32),
    'half': np.array([[1.5], [-3]], ml_dtypes.bfloat16),
    'step': np.array(-(2**60), np.int64),
    'empty': np.zeros([0, 4], np.float32),
}
_CONTENT = {'tokens': ' äb', 'ledger': [3, 'f0'], 'none': None}


class TensorFileTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.file = self.path('x.safetensors')

  def write(self):
    tensor_file.write(self.file, _ARRAYS, content=_CONTENT)

  def test_arrays_and_content_round_trip_bit_for_bit(self):
    self.write()
    header = tensor_file.read_header(self.file)
    self.assertEqual(header.content, _CONTENT)
    self.assertEqual(
        header.shapes, {name: a.shape for name, a in _ARRAYS.items()}
    )
    found, content = tensor_file.read_with_header(self.file)
    self.assertEqual(content, _CONTENT)
    self.assertEqual(list(found), sorted(_ARRAYS))
    for name, array in _ARRAYS.items():
      self.assertEqual(found[name].dtype, array.dtype)
      self.assertEqual(found[name].shape, array.shape)
      self.assertEqual(found[name].tobytes(), array.tobytes())

  def test_other_readers_of_safetensors_read_it(self):
    self.write()
    np.testing.assert_array_equal(
        safetensors_numpy.load_file(self.file)['head/bias'],
        _ARRAYS['head/bias'],
    )

  def test_it_has_the_bytes_that_safetensors_writes(self):
    # All types, an odd size of each, and names in another order than the file.
    arrays = _ARRAYS | {
        f'{name}/\u00e9"\n': np.ones([number], name)
        for number, name in enumerate(
            'bool uint8 int8 int16 uint16 float16 int32 uint32 float32 float64 '
            'int64 uint64'.split(),
            start=1,
        )
    }
    tensor_file.write(self.file, arrays, content=_CONTENT)
    with safetensors.safe_open(self.file, framework='numpy') as file:
      metadata = file.metadata()
    self.assertEqual(
        pathlib.Path(self.file).read_bytes(),
        safetensors_numpy.save(arrays, metadata),
    )

  def test_writing_takes_no_memory_for_another_copy(self):
    arrays = {str(number): np.ones([2**20]) for number in range(4)}  # 32 MiB.
    tracemalloc.start()
    self.addCleanup(tracemalloc.stop)
    tensor_file.write(self.file, arrays, content={})
    _, peak = tracemalloc.get_traced_memory()
    self.assertLess(peak, 2**20)

  def test_only_the_owner_may_read_it_and_equal_arrays_give_equal_files(self):
    pathlib.Path(self.file).write_text('older')
    self.write()
    self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)
    self.assertEqual(os.listdir(self.root), ['x.safetensors'])
    before = pathlib.Path(self.file).read_bytes()
    self.write()
    self.assertEqual(pathlib.Path(self.file).read_bytes(), before)

  def test_each_damaged_byte_and_each_cut_is_found(self):
    self.write()
    data = pathlib.Path(self.file).read_bytes()
    for offset in range(len(data)):
      fakes.damage(self.file, offset=offset)
      with self.assertRaisesRegex(
          tensor_file.DamagedFileError, '^The file .*x.safetensors is'
      ) as caught:
        tensor_file.read_with_header(self.file)
      self.assertNotIn('\n', str(caught.exception))
      fakes.damage(self.file, offset=offset)
    for size in range(0, len(data), 7):
      pathlib.Path(self.file).write_bytes(data[:size])
      with self.assertRaises(tensor_file.DamagedFileError):
        tensor_file.read_header(self.file)

  @parameterized.parameters(
      (None,),
      ({'format': 'pt'},),
      ({'tff_asr': '[1]'},),
      ({'tff_asr': '{"content": {}}'},),
  )
  def test_a_file_of_another_project_is_named(self, metadata):
    safetensors_numpy.save_file(
        {'w': np.zeros(2)}, self.file, metadata=metadata
    )
    with self.assertRaisesRegex(
        tensor_file.DamagedFileError, 'is not of this project'
    ):
      tensor_file.read_with_header(self.file)
