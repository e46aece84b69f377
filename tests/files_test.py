"""Tests of tff_asr.files; for locks see tests/storage/run_dir_test.py."""

import ast
import hashlib
import os
import pathlib
import re
import stat
from unittest import mock

from absl.testing import parameterized
import numpy as np

from tests import cases
from tff_asr import files
from tools import layers

_BLOCK = files._CHUNK_BYTES  # pylint: disable=protected-access
_SIZES = (1, _BLOCK, _BLOCK + 1, 3 * _BLOCK)

# Calls that open files to write them, or copy into them.
_CALLS = re.compile(
    r'(?!files\.|files_lib\.)(.*\.)?'
    r'(write_text|write_bytes|savefig|tofile|TFRecordWriter|create_file_writer'
    r'|GFile|NamedTemporaryFile|mkstemp)'
    r'|(np|tf\.saved_model)\.save.*|shutil\.copy(?!fileobj).*'
)
_WRITERS = {
    # The module itself.
    ('tff_asr/files.py', 'os.open'),
    ('tff_asr/files.py', 'open'),
    # New files: in a folder of the run whose names were looked up, and in a
    # folder of the writer's own, from which all other files were deleted.
    ('tff_asr/storage/metrics_file.py', 'tf.io.TFRecordWriter'),
    ('data_tools/embed.py', 'tf.io.TFRecordWriter'),
    ('data_tools/embed.py', 'shutil.copy'),
    ('data_tools/shards.py', 'tf.io.TFRecordWriter'),
    # Into a buffer in memory.
    ('data_tools/shards.py', 'np.save'),
    # By way of `files.replacing`.
    ('tff_asr/reports/plots.py', 'figure.savefig'),
    # A folder that did not exist.
    ('tff_asr/recognition/export.py', 'tf.saved_model.save'),
    # The descriptor of a file in memory.
    ('tff_asr/data/audio.py', 'open'),
    # A temporary folder of this process.
    ('data_tools/synthetic_voices.py', 'open'),
    # The null device.
    ('data_tools/parallel_encoding.py', 'os.open'),
}


def _writers(text: str) -> list[str]:
  """The calls of a module that open files to write them, by any name."""
  found = []
  for node in ast.walk(ast.parse(text)):
    if not isinstance(node, ast.Call):
      continue
    name = ast.unparse(node.func)
    if name == 'os.open':
      found.append(name)
    elif name in ('open', 'io.open'):
      options = {each.arg: each.value for each in node.keywords}
      modes = [*node.args[1:2], *filter(None, [options.get('mode')])]
      # A mode that is not written here may be any.
      reads = all(
          isinstance(each, ast.Constant) and set(each.value) <= set('rbt')
          for each in modes
      )
      if not reads and ast.unparse(options.get('opener', node)) not in (
          'files.open_own', 'files_lib.open_own'
      ):
        found.append('open')
    elif _CALLS.fullmatch(name):
      found.append(name)
  return found


class FilesTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.root, 'a.txt')

  def read(self) -> str:
    return pathlib.Path(self.path).read_text()

  def test_a_file_is_replaced_and_has_its_mode(self):
    files.write_text(self.path, 'ö')
    files.write_json(self.path, {'a': [1]})
    self.assertEqual(self.read(), '{\n "a": [\n  1\n ]\n}\n')
    files.write(self.path, b'key', mode=0o600)
    self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)
    self.assertEqual(os.listdir(self.root), ['a.txt'])

  def test_json_keeps_letters_and_escapes_what_is_not_utf_8(self):
    # A file name with the byte 0x80, as Python returns it.
    value = ['ö', os.fsdecode(b'a\x80'), 'b\\c']
    files.write_json(self.path, value)
    self.assertEqual(
        pathlib.Path(self.path).read_bytes(),
        '[\n "ö",\n "a\\udc80",\n "b\\\\c"\n]\n'.encode(),
    )
    self.assertEqual(files.parse_json(files.read(self.path)), value)

  def test_a_new_file_has_its_mode_from_the_first_byte_and_follows_no_link(
      self,
  ):
    # Left by a program that was killed, or put there by somebody.
    partial, other = f'{self.path}.partial', os.path.join(self.root, 'other')
    files.write_text(other, 'as it was')
    os.symlink(other, partial)
    before = os.umask(0o022)
    self.addCleanup(os.umask, before)
    with files.replacing(self.path, mode=0o600) as file:
      mode = os.fstat(file.fileno()).st_mode
      self.assertEqual(stat.S_IMODE(mode), 0o600)
      file.write(b'key')
    self.assertEqual(self.read(), 'key')
    self.assertEqual(pathlib.Path(other).read_text(), 'as it was')
    with open(partial, 'wb'):
      os.chmod(partial, 0o666)
    with files.replacing(self.path, mode=0o600) as file:
      mode = os.fstat(file.fileno()).st_mode
      self.assertEqual(stat.S_IMODE(mode), 0o600)

  @parameterized.parameters(*_SIZES)
  def test_replaced_or_erased_files_are_overwritten(self, size):
    key = b'k' * size
    for leave in (lambda: files.write(self.path, b'new'),
                  lambda: files.erase(self.path)):
      files.write(self.path, key)
      with open(self.path, 'rb') as old:
        with files.overwriting(self.path):
          leave()
        self.assertEqual(old.read(), bytes(size))
    self.assertEmpty(os.listdir(self.root))

  @parameterized.parameters(*_SIZES)
  def test_files_of_any_size_are_whole(self, size):
    data = np.random.default_rng(size).bytes(size)
    with files.replacing(self.path) as file:
      # Also in parts.
      file.write(data[: size // 2])
      file.write(data[size // 2 :])
    self.assertEqual(files.read(self.path), data)
    self.assertEqual(
        files.sha256(self.path), hashlib.sha256(data).hexdigest()
    )
    with self.assertRaisesRegex(ValueError, f'more than the {size - 1:,} '):
      files.read(self.path, max_bytes=size - 1)
    self.assertEqual(files.read(self.path, max_bytes=size), data)

  def test_an_erased_file_leaves_nothing_and_need_not_be_there(self):
    files.erase(self.path)
    for path in (self.path, f'{self.path}.partial'):
      files.write(path, b'key')
    with open(self.path, 'rb') as old:
      files.erase(self.path)
      self.assertEqual(old.read(), b'\0\0\0')
    self.assertEmpty(os.listdir(self.root))

  @parameterized.parameters(
      'link', 'dangling link', 'hard link', 'pipe', 'folder', 'device'
  )
  def test_only_a_file_of_its_own_is_written_in_place(self, kind):
    other = os.path.join(self.root, 'other')
    if kind != 'dangling link':
      files.write_text(other, 'as it was')
    {
        'link': lambda: os.symlink(other, self.path),
        'dangling link': lambda: os.symlink(other, self.path),
        'hard link': lambda: os.link(other, self.path),
        'pipe': lambda: os.mkfifo(self.path),
        'folder': lambda: os.mkdir(self.path),
        'device': lambda: os.symlink('/dev/null', self.path),
    }[kind]()

    def overwrite():
      with files.overwriting(self.path):
        self.fail('it has begun')

    for write in (
        overwrite,
        lambda: files.erase(self.path),
        lambda: open(self.path, 'wb', opener=files.open_own).close(),
        lambda: open(self.path, 'a+b', opener=files.open_own).close(),
        lambda: os.close(files.open_own(self.path, os.O_WRONLY)),
    ):
      with self.assertRaises((ValueError, OSError)) as raised:
        write()
      self.assertIn(self.path, str(raised.exception))
      if kind not in ('folder', 'pipe'):
        self.assertIn('might change another file', str(raised.exception))
    self.assertTrue(os.path.lexists(self.path))
    if kind == 'dangling link':
      self.assertFalse(os.path.exists(other))
    else:
      self.assertEqual(pathlib.Path(other).read_text(), 'as it was')

  def test_a_link_that_comes_late_is_not_followed(self):
    files.write_text(self.path, 'as it was')
    link = os.path.join(self.root, 'link')
    os.symlink(self.path, link)
    # As if it had been put there after the look.
    with mock.patch.object(os.path, 'islink', lambda path: False):
      with self.assertRaises(OSError):
        files.open_own(link, os.O_RDWR | os.O_TRUNC)
    self.assertEqual(self.read(), 'as it was')

  def test_a_file_of_its_own_is_made_kept_and_not_inherited(self):
    for text in (b'a', b'b'):
      with open(self.path, 'a+b', opener=files.open_own) as file:
        self.assertFalse(os.get_inheritable(file.fileno()))
        file.write(text)
    self.assertEqual(self.read(), 'ab')

  def test_damaged_json_is_one_line_with_the_file_and_what_to_do(self):
    read = lambda parse=lambda value: value: files.read_json(
        self.path, parse, remedy='write it again'
    )
    files.write_json(self.path, {'a': [1]})
    self.assertEqual(read(), {'a': [1]})
    self.assertEqual(read(lambda value: value['a'][0] + 1), 2)
    for parse, detail in (
        (lambda value: value['b'], "it lacks 'b'"),
        (lambda value: value.keys() + 1, 'its values are of other types'),
        (lambda value: value.none, 'its values are of other types'),
        (lambda value: float('x'), 'could not convert'),
    ):
      with self.assertRaisesRegex(
          ValueError, f'^{self.path} is damaged .*{detail}.*: write it again.$'
      ):
        read(parse)
    for data in (b'', b'{', b'\xff', b'[' * 10**5, b'{}x'):
      files.write(self.path, data)
      with self.assertRaisesRegex(ValueError, f'^{self.path} is damaged '):
        read()
    os.remove(self.path)
    with self.assertRaises(FileNotFoundError):
      read()

  def test_nothing_else_opens_files_to_write_them(self):
    """Writers that follow links, but for those of which a line says why."""
    found = set()
    for path in layers.ROOT.glob('*/**/*.py'):
      name = str(path.relative_to(layers.ROOT))
      if name.split('/')[0] in ('tff_asr', 'bin', 'data_tools', 'experiments'):
        found |= {(name, call) for call in _writers(path.read_text('utf-8'))}
    self.assertEqual(found, _WRITERS)

  def test_writers_are_recognised(self):
    for text, expected in (
        ('open(a)', []),
        ("open(a, 'rb')", []),
        ("open(a, encoding='x')", []),
        ("open(a, 'w')", ['open']),
        ("io.open(a, mode='r+')", ['open']),
        ("open(a, 'ab', opener=files.open_own)", []),
        ("open(a, kind)", ['open']),
        ('os.open(a, os.O_RDWR)', ['os.open']),
        ('path.write_text(b)', ['path.write_text']),
        ('files.write_text(a, b)', []),
        ('np.save(a, b)', ['np.save']),
        ('saver.save(a, b)', []),
        ('figure.savefig(a)', ['figure.savefig']),
        ('shutil.copyfile(a, b)', ['shutil.copyfile']),
        ('shutil.copyfileobj(a, b)', []),
        ('tf.io.TFRecordWriter(a)', ['tf.io.TFRecordWriter']),
    ):
      self.assertEqual(_writers(text), expected, text)

  @parameterized.parameters('fsync', 'replace')
  def test_a_failed_write_leaves_the_old_file_and_nothing_else(self, step):
    files.write_text(self.path, 'old')
    with mock.patch.object(os, step, side_effect=OSError('full')):
      with self.assertRaisesRegex(OSError, 'full'):
        files.write_text(self.path, 'new')
    self.assertEqual(os.listdir(self.root), ['a.txt'])
    self.assertEqual(self.read(), 'old')

  def test_contents_and_names_are_on_disk_before_it_returns(self):
    order = []

    def look(step):
      real = getattr(os, step)

      def call(*arguments):
        order.append(step)
        return real(*arguments)

      return mock.patch.object(os, step, call)

    with look('fsync'), look('replace'):
      files.write(self.path, b'x')
    self.assertEqual(order, ['fsync', 'replace', 'fsync'])
