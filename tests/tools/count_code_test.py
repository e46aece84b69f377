"""Counts of a module, checked against counts by hand."""

from absl.testing import absltest

from tools import count_code

_MODULE = '''"""A module
of two lines of docstring."""

from typing import Any

# A comment.
NUMBER = 1  # After code: not a comment line.


def public(a: Any, b, c, d, e, f, g, h, i):
  """Nine arguments."""
  text = """a string
  of two lines"""
  return text


class Public:

  def method(self):
    # Another comment.
    return 1


def _private():
  pass
'''


class CountCodeTest(absltest.TestCase):

  def test_counts_of_a_module_are_those_counted_by_hand(self):
    # Code: import, NUMBER, def public and its 3 lines, class Public, def
    # method, return, def _private, pass.
    self.assertEqual(
        count_code.count_module(_MODULE),
        [25, 11, 2, 1, 1, 1, 0, 1],
    )

  def test_only_functions_above_sixty_lines_are_long(self):
    of_lines = lambda count: 'def f():\n' + '  pass\n' * (count - 1)
    self.assertEqual(count_code.count_module(of_lines(60))[6], 0)
    self.assertEqual(count_code.count_module(of_lines(61))[6], 1)

  def test_the_closure_goes_through_imports_of_imports(self):
    found = count_code.closure('tff_asr.data.client_data')
    self.assertContainsSubset(
        {'tff_asr.data.client_data', 'tff_asr.data.schema'}, found
    )
    self.assertNotIn('tff_asr.programs.federated', found)


if __name__ == '__main__':
  absltest.main()
