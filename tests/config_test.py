"""Tests of tff_asr.config."""

import asyncio
import collections.abc
from collections.abc import Callable, Sequence
import importlib
import inspect
import logging
import os
import pathlib
import re
import tempfile
import typing
from typing import Any, Optional

from absl.testing import parameterized
import tensorflow as tf

from tests import cases
from tff_asr import checks
from tff_asr import config
from tff_asr.privacy import queries
from tff_asr.programs import federated
from tff_asr.storage import run_dir
from tools import layers

_FILE = 'gin/experiments/quickstart_federated.gin'
_HEAD = 'from __gin__ import dynamic_registration\n'


def _bind(*gin_params: str, gin_files=(_FILE,)):
  return config.bind(
      federated.FederatedTraining,
      gin_files=gin_files,
      gin_params=gin_params,
  )


class Part:
  """A part that a configuration builds."""

  def __init__(self, size: 'int', *, name: Optional[str] = None):
    self.size = size
    self.name = name


def program(
    part: Any = None,
    second: Any = None,
    whole: int = 1,
    number: float = 1.0,
    flag: bool = True,
    optional: int | None = None,
    path: str | os.PathLike[str] = '',
    texts: Sequence[str] = (),
    items: Sequence = (),
    function: Callable[..., int] = len,
    typed: Optional[Part] = None,
) -> dict[str, Any]:
  """Arguments of many types; bound in the tests."""
  del number, flag, optional, path, texts, items, function
  return {'part': part, 'second': second, 'typed': typed, 'whole': whole}


def needs(first: int, second: int) -> int:
  """A part that checks its arguments."""
  if first == second:
    raise ValueError('they are equal.')
  return first


def _settable_mappings() -> set[tuple[str, str]]:
  """Modules that gin files name, and their arguments that are mappings."""
  modules = set()
  for path in layers.ROOT.glob('gin/**/*.gin'):
    for package, name in re.findall(
        r'^from (tff_asr[\w.]*) import (\w+)', path.read_text('utf-8'), re.M
    ):
      modules.add(f'{package}.{name}')
  found = set()
  for module in sorted(modules):
    for name, part in vars(importlib.import_module(module)).items():
      if name.startswith('_') or getattr(part, '__module__', '') != module:
        continue
      if not callable(part):
        continue
      called = part.__init__ if inspect.isclass(part) else part
      for argument, hint in typing.get_type_hints(called).items():
        # The annotation, or an option of it.
        kinds = map(typing.get_origin, [hint, *typing.get_args(hint)])
        if argument != 'return' and any(
            kind in (dict, collections.abc.Mapping) for kind in kinds
        ):
          found.add((module, f'{name}.{argument}'))
  return found


class BindTest(cases.TestCase):

  def write(self, text: str) -> str:
    path = self.path('test.gin')
    pathlib.Path(path).write_text(_HEAD + text)
    return path

  def check_error(self, *gin_params: str, message: str, **kwargs) -> None:
    with self.assertRaises(config.ConfigError) as caught:
      _bind(*gin_params, **kwargs)
    self.assertIn(message, str(caught.exception))
    self.assertNotIn('\n', str(caught.exception))
    self.assertNotRegex(str(caught.exception), ' at 0x')

  def test_a_file_that_does_not_exist_has_its_nearest_name(self):
    name = 'gin/experiments/quickstart_federated.gin'
    for wrong in (name[:-5] + '.gin', 'quickstart_federated.gin'):
      self.check_error(
          gin_files=[wrong],
          message=f'{wrong} does not exist. Did you mean {name}?',
      )
    own = self.write('')
    self.check_error(
        gin_files=[own.replace('test.gin', 'tset.gin')],
        message=f'Did you mean {own}?',
    )
    with self.assertRaisesRegex(config.ConfigError, r'zzz does not exist\.$'):
      _bind(gin_files=['zzz'])

  def test_gives_the_program_with_overrides_applied_last(self):
    self.assertTrue(callable(_bind('NUM_ROUNDS = 3', 'NUM_ROUNDS = 4')))
    self.assertIn('\nNUM_ROUNDS = 4\n', config.text())
    self.assertIn(
        'federated.FederatedTraining.num_rounds = %NUM_ROUNDS', config.text()
    )
    _bind()
    self.assertNotIn('NUM_ROUNDS = 4\n', config.text())

  def test_later_files_win(self):
    path = self.write("PRIVATE_DIR = 'elsewhere'\n")
    _bind(gin_files=(_FILE, path))
    self.assertIn("\nPRIVATE_DIR = 'elsewhere'\n", config.text())

  def test_binds_from_another_folder_without_warnings(self):
    previous = os.getcwd()
    os.chdir(self.root)
    try:
      with self.assertNoLogs(level=logging.WARNING):
        _bind('NUM_ROUNDS = 3')
    finally:
      os.chdir(previous)

  def test_text_binds_to_the_same_text(self):
    _bind('NUM_ROUNDS = 3', 'client_update.LocalTraining.max_grad_norm = 2.0')
    text = config.text()
    _bind(gin_files=(self.write(text.removeprefix(_HEAD)),))
    self.assertEqual(config.text(), text)

  def test_each_mapping_that_can_be_set_is_saved_in_its_order(self):
    found = _settable_mappings()
    self.assertContainsSubset(
        {
            ('tff_asr.privacy.queries', 'PerLayerClipSumQuery.noise_factors'),
            ('tff_asr.privacy.clipping', 'Clipping.weights'),
            ('tff_asr.text.tokenizer', 'SentencePieceTokenizer.pieces'),
        },
        found,
    )
    # Neither order is sorted. The second has one more level and many lines.
    for value in (
        {'z': 1, '': 0, 'm': 2},
        {f'/w{9 - i}$': {'z': float(i), 'a': [{2: 1, 1: 2}]} for i in range(9)},
    ):
      for module, argument in found:
        package, _, name = module.rpartition('.')
        setting = f'{name}.{argument}'
        path = self.write(
            'from tests import config_test\n'
            f'from {package} import {name}\n'
            f'MAPPING = {value!r}\n'
            f'{setting} = {value!r}\n'
            'config_test.program.part = %MAPPING\n'
        )
        config.bind(program, gin_files=[path])
        saved = config.text()
        config.gin.clear_config()
        path = self.write(saved.removeprefix(_HEAD))
        part = config.bind(program, gin_files=[path])()['part']
        self.assertEqual(config.text(), saved)
        for bound in (part, config.gin.query_parameter(setting)):
          self.assertEqual(repr(bound), repr(value), setting)

  def test_runs_that_differ_in_the_order_of_a_mapping_are_different(self):
    experiment = 'gin/experiments/quickstart_federated_dp.gin'
    specs = {
        name: tf.TensorSpec([2]) for name in ('a/w1', 'a/b', 'b/w3')
    }
    texts = []
    for value, expected in (
        ("{'/w[12]$': 1, '': 0}", [0.0, 1.0, 0.0]),
        ("{'': 0, '/w[12]$': 1}", [0.0, 0.0, 0.0]),
    ):
      _bind(f'NOISE_FACTORS = {value}', gin_files=[experiment])
      texts.append(config.text())
      _bind(gin_files=[self.write(texts[-1].removeprefix(_HEAD))])
      query = queries.PerLayerClipSumQuery(
          specs,
          l2_norm_clip=1.0,
          noise_multiplier=0.0,
          noise_factors=config.gin.query_parameter('%NOISE_FACTORS'),
      )
      self.assertEqual(query._factors, expected)  # pylint: disable=protected-access
    first, second = texts
    run = self.path('run')
    with run_dir.RunDir(run, configuration=first) as folder:
      asyncio.run(folder.state_manager.save({'a': 1}, 0))
    run_dir.check_folder(run, configuration=first)
    with self.assertRaisesRegex(ValueError, 'another configuration .*NOISE_FA'):
      run_dir.check_folder(run, configuration=second)
    self.assertNotEqual(*map(run_dir.config_digest, texts))

  @parameterized.named_parameters(
      (
          'macro',
          'NUM_ROUND = 3',
          'unknown setting NUM_ROUND in --gin_param. Did you mean NUM_ROUNDS?',
      ),
      ('macro_like_none', 'XYZZY = 3', 'unknown setting XYZZY in --gin_param.'),
      ('lower_case', 'num_rounds = 3', 'unknown setting num_rounds'),
      (
          'second_line',
          'NUM_ROUNDS = 3\nNUM_ROUND = 4',
          'unknown setting NUM_ROUND',
      ),
      (
          'argument',
          'fed_avg.build.max_grad_nrm = 2.0',
          "have a parameter named 'max_grad_nrm'.",
      ),
      (
          'function',
          'fed_avg.biuld.max_grad_norm = 2.0',
          "matching 'fed_avg.biuld'.",
      ),
      (
          'reference',
          'BUILD_COHORTS = @cohorts.fixd_size',
          "matching reference '@cohorts.fixd_size'.",
      ),
      (
          'undefined',
          'NUM_ROUNDS = %NUM_RONDS',
          '%NUM_RONDS is used and nowhere set. Did you mean NUM_ROUNDS?',
      ),
      ('required', 'NUM_ROUNDS = %gin.REQUIRED', 'NUM_ROUNDS has no value'),
      ('no_value', 'NUM_ROUNDS', "like 'NAME = value', found 'NUM_ROUNDS'"),
      ('empty_value', 'NUM_ROUNDS =', "--gin_param='NUM_ROUNDS ='"),
      ('no_quotes', 'INIT_FROM_RUN = runs/x', 'INIT_FROM_RUN = runs/x'),
      ('a_word', 'INIT_FROM_RUN = seed', 'does a text lack its quotes'),
      ('open_bracket', 'DEVICES = [3', "--gin_param='DEVICES = [3'"),
  )
  def test_overrides_in_error(self, gin_param, message):
    self.check_error(gin_param, message=message)

  @parameterized.named_parameters(
      ('include', "include 'gin/nothing.gin'\n", 'gin/nothing.gin'),
      ('import', 'from tff_asr import nothing\n', 'nothing'),
      ('syntax', 'NUM_ROUNDS = 3 +\n', "cannot parse 'NUM_ROUNDS = 3 +'"),
      ('name', 'nothing.at_all = 3\n', "'nothing' was not provided"),
  )
  def test_files_in_error(self, text, message):
    self.check_error(gin_files=(self.write(text),), message=message)


class PartsTest(parameterized.TestCase):

  def bind(self, *bindings: str):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = os.path.join(folder, 'test.gin')
    lines = ('from tests import config_test', 'A = 1', *bindings)
    pathlib.Path(path).write_text(_HEAD + '\n'.join(lines) + '\n')
    return config.bind(program, gin_files=[path])

  @parameterized.parameters(
      ('whole', ['0', '-3'], ['1.0', 'True', "'1'", 'None'], 'an integer'),
      ('number', ['0', '1.5'], ['True', "'1'", 'None'], 'a number'),
      ('flag', ['True'], ['1', 'None'], 'True or False'),
      ('optional', ['1', 'None'], ["''", '1.5'], 'an integer or None'),
      ('path', ["'a'"], ['3', 'None'], 'a text in quotes'),
      ('texts', ['[]', "['a']", "('a',)"], ["'a'", '[1]', '3'], 'a list'),
      ('items', ["[1, 'a']"], ["'a'"], 'a list'),
      (
          'function',
          ['@config_test.needs'],
          ['3'],
          'a function (@ without brackets)',
      ),
      (
          'typed',
          ['None', '@config_test.Part()'],
          ['1', "'a'"],
          'a Part or None',
      ),
      ('part', ['1', 'None', "'a'"], [], ''),
  )
  def test_a_value_of_another_type_is_one_line(self, name, good, bad, words):
    needed = (
        'config_test.Part.size = 3',
        'config_test.needs.first = 1',
        'config_test.needs.second = 2',
    )
    for value in good:
      self.bind(f'config_test.program.{name} = {value}', *needed)()
    for value in bad:
      bound = self.bind(f'config_test.program.{name} = {value}', *needed)
      with self.assertRaises(config.ConfigError) as caught:
        bound()
      self.assertStartsWith(
          str(caught.exception),
          f'config_test.program.{name} must be {words}, found ',
      )

  def test_wrong_arguments_of_all_parts_are_reported_once_and_by_macro(self):
    bound = self.bind(
        'config_test.program.part = @x/config_test.needs()',
        'config_test.program.second = [@y/config_test.needs(), '
        '@y/config_test.needs()]',
        "A = 'one'",
        'config_test.program.typed = @config_test.Part()',
        'x/config_test.needs.first = 1',
        'y/config_test.needs.first = %A',
        'y/config_test.needs.second = 1',
        "config_test.Part.size = 'x'",
        'config_test.program.flag = 3',
    )
    with self.assertRaises(checks.Problems) as caught:
      bound()
    self.assertCountEqual(caught.exception.messages, (
        'config_test.needs.second has no value; set it in the configuration.',
        "A must be an integer, found 'one'.",
        "config_test.Part.size must be an integer, found 'x'.",
        'config_test.program.flag must be True or False, found 3.',
    ))

  def test_a_part_s_own_error_is_raised(self):
    bound = self.bind(
        'config_test.program.part = @config_test.needs()',
        'config_test.needs.first = 1',
        'config_test.needs.second = %A',
    )
    with self.assertRaisesRegex(ValueError, 'they are equal.'):
      bound()

  def test_a_part_is_built_in_its_scope(self):
    built = self.bind(
        'config_test.program.part = @x/config_test.Part()',
        'config_test.program.typed = @config_test.Part()',
        'config_test.Part.size = 1',
        'x/config_test.Part.size = 2',
    )(whole=5)
    self.assertEqual((built['part'].size, built['typed'].size), (2, 1))
    self.assertEqual(built['whole'], 5)
