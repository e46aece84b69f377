"""The BUILD files are what the imports and the layers make them."""

import functools
import pathlib
import tempfile

from absl.testing import absltest

from tools import build_files
from tools import layers

# BUILD tags: external local


def _modules() -> dict[str, pathlib.Path]:
  """Full names of the modules that have targets, and their files."""
  modules = {
      '.'.join(path.relative_to(layers.ROOT).with_suffix('').parts): path
      for folder in layers.FOLDERS
      for path in layers.files(folder)
  }
  del modules['tests.pytest_main']  # The rule pytest_test has it.
  return modules


def _is_init(module: str) -> bool:
  return module.endswith('.__init__')


def _target_of(module: str) -> str:
  folder, _, name = module.rpartition('.')
  return f'//{folder.replace(".", "/")}:{name}'


class _Build:
  """The BUILD files, read as the Python that they also are."""

  def __init__(self):
    # Full labels to attributes, and package groups to packages and includes.
    self.targets = {}
    self.groups = {}
    self.exported = set()
    self._read('', layers.ROOT / 'BUILD')
    for top in ('gin', *layers.FOLDERS):
      for path in (layers.ROOT / top).rglob('BUILD'):
        folder = str(path.parent.relative_to(layers.ROOT))
        if not folder.startswith('tools/bazel4'):
          self._read(folder, path)

  def _read(self, folder: str, path: pathlib.Path) -> None:
    """Adds the targets of a BUILD file."""
    defaults = {}
    labels = lambda names: {self._label(folder, name) for name in names}

    def add(rule: str, *, name: str, **attributes) -> None:
      label = f'//{folder}:{name}'
      if label in self.targets:
        raise AssertionError(f'{label} is there twice.')
      visibility = attributes.get('visibility', defaults.get('visibility', ()))
      self.targets[label] = {
          'rule': rule,
          'srcs': {f'{folder}/{file}' for file in attributes.get('srcs', ())},
          'data': labels(attributes.get('data', ())),
          'deps': labels(attributes.get('deps', ())),
          'visibility': labels(visibility),
      }

    def add_group(name: str, packages: list[str], includes=()) -> None:
      self.groups[f'//{folder}:{name}'] = (packages, labels(includes))

    rules = ('filegroup', 'py_binary', 'py_library', 'pytest_test')
    names = {
        'load': lambda *unused: None,
        'glob': lambda unused: (),
        'exports_files': lambda files: self.exported.update(
            f'//{folder}:{file}' for file in files
        ),
        'package': lambda default_visibility, **unused: defaults.update(
            visibility=default_visibility
        ),
        'package_group': add_group,
        **{rule: functools.partial(add, rule) for rule in rules},
    }
    code = compile(path.read_text('utf-8'), path, 'exec')
    exec(code, names)  # pylint: disable=exec-used

  def _label(self, folder: str, label: str) -> str:
    """'//a:b' for ':b' in the folder a, '//a:a' for '//a'."""
    if label.startswith(':'):
      return f'//{folder}{label}'
    return label if ':' in label else f'{label}:{label.rpartition("/")[2]}'

  def is_visible(self, label: str, folder: str) -> bool:
    """Whether targets of a folder may name a target."""
    return label.startswith(f'//{folder}:') or any(
        self._takes_in(visible, folder)
        for visible in self.targets[label]['visibility']
    )

  def _takes_in(self, visible: str, folder: str) -> bool:
    """Whether a visibility, or an entry of a group, has a folder."""
    if visible in self.groups:
      packages, includes = self.groups[visible]
      return any(
          self._takes_in(other, folder) for other in (*packages, *includes)
      )
    if visible == '//visibility:public':
      return True
    package, _, kind = visible.removeprefix('//').partition(':')
    if kind == '__subpackages__' or package.endswith('/...'):
      parent = package.removesuffix('/...')
      return f'{folder}/'.startswith(f'{parent}/')
    return kind in ('', '__pkg__') and package == folder

  @functools.cache
  def closure(self, label: str) -> frozenset[str]:
    """A target and all that it depends on."""
    deps = self.targets[label]['deps']
    return frozenset({label}.union(*map(self.closure, deps)))


class BuildFilesTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.build = _Build()

  def test_are_what_the_imports_make_them(self):
    self.assertEqual(list(build_files.differences()), [])

  def test_every_module_is_the_source_of_the_target_of_its_name(self):
    sources = {
        source: label
        for label, target in self.build.targets.items()
        for source in target['srcs']
    }
    expected = {
        str(path.relative_to(layers.ROOT)): _target_of(module)
        for module, path in _modules().items()
    }
    self.assertEqual(sources, expected)
    self.assertIn('//tests:pytest_main.py', self.build.exported)

  def test_programs_and_tests_have_their_rules(self):
    for module in _modules():
      folder, _, name = module.rpartition('.')
      rule = self.build.targets[_target_of(module)]['rule']
      is_test = folder.startswith('tests') and name.endswith('_test')
      self.assertEqual(rule == 'pytest_test', is_test, module)
      if folder == 'bin':
        self.assertEqual(rule, 'py_binary', module)

  def test_dependencies_are_the_imports(self):
    modules = _modules()
    for module, path in modules.items():
      imported = {
          _target_of(name)
          for name in layers.imports(path.read_text('utf-8'))
          if name.split('.')[0] in layers.FOLDERS
      }
      deps = self.build.targets[_target_of(module)]['deps']
      self.assertEqual(
          {dep for dep in deps if not dep.endswith(':__init__')},
          imported,
          module,
      )

  def test_packages_come_with_their_modules(self):
    inits = {module for module in _modules() if _is_init(module)}
    for module in _modules():
      closure = self.build.closure(_target_of(module))
      while module:
        module = module.rpartition('.')[0]
        if f'{module}.__init__' in inits:
          self.assertIn(_target_of(f'{module}.__init__'), closure)

  def test_every_label_names_a_target_that_it_may_see(self):
    for label, target in self.build.targets.items():
      folder = label.removeprefix('//').split(':')[0]
      for other in target['deps'] | target['data'] - self.build.exported:
        self.assertTrue(other in self.build.targets, (label, other))
        self.assertTrue(self.build.is_visible(other, folder), (label, other))

  def test_visibility_is_the_table(self):
    modules = [module for module in _modules() if not _is_init(module)]
    packages = {module.rpartition('.')[0] for module in modules}
    for module in modules:
      label = _target_of(module)
      if self.build.targets[label]['visibility'] == {'//visibility:public'}:
        continue  # A program, which may be started from everywhere.
      # In tff_asr itself stand modules of several layers, and the whole of it.
      for package in packages - {module.rpartition('.')[0], 'tff_asr'}:
        allowed = layers.may_import(layers.package_of(f'{package}.x'))
        self.assertEqual(
            self.build.is_visible(label, package.replace('.', '/')),
            layers.is_under(module, allowed),
            (module, package),
        )


class GeneratorTest(absltest.TestCase):
  """On a small project in a folder of its own."""

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    for path in ('tff_asr', 'tff_asr/text', 'tff_asr/models', 'tests'):
      self.write(f'{path}/__init__.py', '')
    self.write('tff_asr/text/tokenizer.py', 'import numpy as np\n')
    self.write(
        'tff_asr/models/ctc.py',
        'from tff_asr.models import encoder\n'
        'from tff_asr.text import tokenizer\n',
    )
    self.write('tff_asr/models/encoder.py', 'import tensorflow as tf\n')
    self.write('gin/models/a.gin', 'from tff_asr.models import encoder\n')
    self.write_build_files()

  def write(self, path: str, text: str) -> None:
    (self.root / path).parent.mkdir(parents=True, exist_ok=True)
    (self.root / path).write_text(text, 'utf-8')

  def write_build_files(self) -> None:
    for path, text in build_files.build_files(self.root).items():
      self.write(path, text)

  def differences(self) -> list[str]:
    return list(build_files.differences(self.root))

  def test_layout(self):
    self.assertEqual(
        (self.root / 'tff_asr/models/BUILD').read_text('utf-8'),
        """\
# Made from the imports of the files here: python -m tools.build_files

load("@rules_python//python:py_library.bzl", "py_library")

package(default_visibility = ["//tff_asr:from_layer_3"])

py_library(
    name = "__init__",
    srcs = ["__init__.py"],
    visibility = ["//visibility:private"],
    deps = ["//tff_asr:__init__"],
)

py_library(
    name = "ctc",
    srcs = ["ctc.py"],
    deps = [
        ":__init__",
        ":encoder",
        "//tff_asr/text:tokenizer",
    ],
)

py_library(
    name = "encoder",
    srcs = ["encoder.py"],
    deps = [":__init__"],
)
""",
    )
    self.assertIn(
        '    deps = ["//tff_asr/models:encoder"],\n',
        (self.root / 'gin/BUILD').read_text('utf-8'),
    )

  def test_nothing_differs_at_first(self):
    self.assertEmpty(self.differences())

  def test_a_module_without_target_is_found(self):
    self.write('tff_asr/text/alignment.py', '')
    self.assertEqual(
        self.differences(), ['tff_asr/BUILD', 'tff_asr/text/BUILD']
    )
    self.write('bin/train.py', "if __name__ == '__main__':\n  print()\n")
    self.assertIn('bin/BUILD', self.differences())

  def test_a_changed_import_is_found(self):
    self.write('tff_asr/models/ctc.py', 'from tff_asr.models import encoder\n')
    self.assertEqual(self.differences(), ['tff_asr/models/BUILD'])

  def test_an_import_in_gin_is_found(self):
    self.write('gin/models/b.gin', 'from tff_asr.models import ctc\n')
    self.assertEqual(self.differences(), ['gin/BUILD'])

  def test_a_build_file_edited_or_one_too_many_is_found(self):
    self.write('tff_asr/text/BUILD', '')
    self.write('tests/golden/BUILD', '')
    self.assertEqual(
        self.differences(), ['tff_asr/text/BUILD', 'tests/golden/BUILD']
    )

  def test_comments_of_a_test_become_attributes(self):
    self.write(
        'tests/x_test.py',
        '# BUILD data: //bin:b //bin:a\n# BUILD data: //tests:c\n'
        '# BUILD tags: external local\n# BUILD size: large\n',
    )
    self.assertEndsWith(
        build_files.build_files(self.root)['tests/BUILD'],
        """
pytest_test(
    name = "x_test",
    size = "large",
    srcs = ["x_test.py"],
    data = [
        ":c",
        "//bin:a",
        "//bin:b",
    ],
    tags = [
        "external",
        "local",
    ],
    deps = [":__init__"],
)
""",
    )

  def test_size_is_that_of_what_is_imported(self):
    self.write('tests/x_test.py', 'from tff_asr.text import tokenizer\n')
    text = build_files.build_files(self.root)['tests/BUILD']
    self.assertIn('size = "small"', text)
    self.write('tests/x_test.py', 'from tff_asr.models import ctc\n')
    text = build_files.build_files(self.root)['tests/BUILD']
    self.assertIn('size = "medium"', text)

  def test_mistakes_are_named(self):
    self.write('tests/x_test.py', '# BUILD dta: //bin:b\n')
    with self.assertRaisesRegex(ValueError, "tests.x_test: .* 'dta: //bin:b'"):
      self.differences()
    self.write('tests/x_test.py', 'from tff_asr import nothing\n')
    with self.assertRaisesRegex(ValueError, 'x_test imports tff_asr.nothing'):
      self.differences()
    self.write('tests/x_test.py', '')
    self.write('gin/models/b.gin', 'from tff_asr.models import nothing\n')
    with self.assertRaisesRegex(ValueError, 'b.gin imports tff_asr.models.no'):
      self.differences()


if __name__ == '__main__':
  absltest.main()
