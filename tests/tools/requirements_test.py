"""Every package of a requirements file is pinned by version and hashes."""

import re

from absl.testing import parameterized

from tools import layers

# Packages of environments for comparisons with other projects' code, which
# neither the library nor its tests import. They are installed with what they
# depend on, which differs by machine: PyTorch for CPUs is on another index.
_EXCEPTIONS = (
    'requirements-parity.txt',
    'requirements-pretrained-parity.txt',
    'benchmarks/baselines/requirements-flwr.txt',
    'benchmarks/baselines/requirements-jax.txt',
    'benchmarks/baselines/requirements-pfl.txt',
    'benchmarks/baselines/requirements-pfl_tf.txt',
    'benchmarks/baselines/requirements-torch.txt',
)
_PIN = re.compile(
    r'[a-z0-9]([a-z0-9-]*[a-z0-9])?==[\w.+!-]+'
    r'( \\\n    --hash=sha256:[0-9a-f]{64})+\n'
)


def problems(text: str) -> list[str]:
  """The lines of a requirements file that pin nothing by hashes."""
  lines = ''.join(
      line for line in text.splitlines(keepends=True)
      if line.strip() and not line.startswith('#')
  )
  return _PIN.sub('', lines).splitlines()


def _files() -> dict[str, str]:
  return {
      str(path.relative_to(layers.ROOT)): path.read_text('utf-8')
      for pattern in ('requirements*.txt', '*/**/requirements*.txt')
      for path in layers.ROOT.glob(pattern)
      if not str(path.relative_to(layers.ROOT)).startswith('.')
  }


class RequirementsTest(parameterized.TestCase):

  def test_each_pin_has_hashes(self):
    found = _files()
    self.assertContainsSubset(
        {'requirements.txt', 'requirements-gpu.txt', *_EXCEPTIONS}, found
    )
    for name, text in found.items():
      if name in _EXCEPTIONS:
        self.assertNotIn('--hash', text, f'{name} is no exception any more')
      else:
        self.assertEqual(
            problems(text), [],
            f'{name}: run tools/lock_requirements.sh --hashes',
        )

  @parameterized.parameters(
      ('', []),
      (f'# x\na-b==1.0 \\\n    --hash=sha256:{"0" * 64}\n', []),
      ('a==1.0\n', ['a==1.0']),
      (f'a==1.0 \\\n    --hash=sha256:{"0" * 63}\n', ['a==1.0 \\']),
      (f'a>=1.0 \\\n    --hash=sha256:{"0" * 64}\n', ['a>=1.0 \\']),
      (f'a==1 \\\n    --hash=md5:{"0" * 64}\nb==2\n', ['a==1 \\', 'b==2']),
  )
  def test_what_has_no_hash_is_found(self, text, expected):
    self.assertEqual([
        line for line in problems(text) if '--hash' not in line
    ], expected)

