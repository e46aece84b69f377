"""Tests of the help that coverage gets; see `autograph_lines`."""

import dis

from absl.testing import absltest
import tensorflow as tf

from tests import autograph_lines


def _lines(code) -> set[int]:
  lines = {line for _, line in dis.findlinestarts(code) if line is not None}
  for each in code.co_consts:
    if isinstance(each, type(code)):
      lines |= _lines(each)
  return lines


class AutographLinesTest(absltest.TestCase):

  def test_relocates_lines_far_apart_and_code_inside(self):
    source = 'x = 1\ndef f():\n  return [\n    1 for _ in ()]\ny = 2\n'
    code = compile(source, 'made.py', 'exec')
    places = {
        made: ('a.py', line)
        for made, line in ((1, 1000), (2, 3), (3, 70), (5, 4))
    }
    moved = autograph_lines.relocate(code, places)
    self.assertEqual(moved.co_filename, 'a.py')
    # Line 4 has no place, so nothing of it is left.
    self.assertEqual(_lines(moved), {1000, 3, 70, 4})
    namespace = {}
    exec(moved, namespace)  # pylint: disable=exec-used
    self.assertEqual((namespace['x'], namespace['y']), (1, 2))
    self.assertEqual(namespace['f'](), [])

  def test_a_converted_function_keeps_its_places(self):
    load_ast = autograph_lines.loader.load_ast
    self.addCleanup(setattr, autograph_lines.loader, 'load_ast', load_ast)
    autograph_lines.install()

    def double_large(value):
      if value > 2:
        value = value * 2
      return value

    converted = tf.autograph.to_graph(double_large)
    first = double_large.__code__.co_firstlineno
    self.assertEqual(converted.__code__.co_filename, __file__)
    self.assertContainsSubset(
        {first + 1, first + 2, first + 3}, _lines(converted.__code__)
    )
    self.assertEqual(int(tf.function(double_large)(tf.constant(3))), 6)
    self.assertEqual(int(tf.function(double_large)(tf.constant(1))), 1)
