"""Tests of tff_asr.type_checks."""

from collections.abc import Callable, Sequence
import dataclasses
import os
import pathlib
from typing import Any, Optional, TypeVar

from absl.testing import absltest
from absl.testing import parameterized

from tff_asr import type_checks


@dataclasses.dataclass
class _Fields:
  size: int


class _Class:

  def __init__(self, size: 'int', *, name: Optional[str] = None):
    del size, name


def _function(size: int, name=None) -> str:
  return f'{size}{name}'


class AnnotationsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('int', int, [0, -3], [1.0, True, '1', None], 'an integer'),
      ('float', float, [0, 1.5], [True, '1', None], 'a number'),
      ('bool', bool, [True], [1, None], 'True or False'),
      ('optional', Optional[int], [1, None], ['', 1.5], 'an integer or None'),
      ('union', int | None, [1, None], ['', 1.5], 'an integer or None'),
      (
          'path',
          str | os.PathLike[str],
          ['a', pathlib.Path('a')],
          [3, None],
          'a text in quotes',
      ),
      ('list', Sequence[str], [[], ['a'], ('a',)], ['a', [1], 3], 'a list'),
      ('any_list', Sequence, [[1, 'a']], ['a'], 'a list'),
      (
          'callable',
          Callable[..., int],
          [len],
          [3],
          'a function (@ without brackets)',
      ),
      ('class', _Class, [_Class(1)], [1, _Class], 'a _Class'),
      ('any', Any, [1, None], [], 'anything'),
      ('unknown', TypeVar('T'), [1, None], [], 'a T'),
  )
  def test_values_and_words(self, annotation, good, bad, words):
    for value in good:
      self.assertTrue(type_checks.is_met(annotation, value), value)
    for value in bad:
      self.assertFalse(type_checks.is_met(annotation, value), value)
    self.assertEqual(type_checks.describe(annotation), words)

  def test_of_functions_and_classes(self):
    self.assertEqual(type_checks.of(_function), {'size': int})
    self.assertEqual(
        type_checks.of(_Class), {'size': int, 'name': Optional[str]}
    )
    self.assertEqual(type_checks.of(_Fields), {'size': int})


if __name__ == '__main__':
  absltest.main()
