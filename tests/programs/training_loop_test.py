"""Tests of tff_asr.programs.training_loop: properties of all programs' runs.

The programs run here on the same speakers; each program's own features are
tested in its own module.
"""

import asyncio
import functools
import io
import json
import os
from typing import Any
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests import seen
from tests.programs import runs
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.learning import central_step
from tff_asr.learning import dp_sgd
from tff_asr.models import best_rq
from tff_asr.models import quantizer as quantizer_lib
from tff_asr.privacy import queries
from tff_asr.programs import central
from tff_asr.programs import faults
from tff_asr.programs import federated
from tff_asr.programs import pretraining
from tff_asr.programs import training_loop
from tff_asr.storage import checkpoints
from tff_asr.storage import metrics_file
from tff_asr.storage import model_file
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

_CLIENTS = {'ann': 2, 'bob': 2, 'cai': 1}
_BUILD_QUERY = functools.partial(
    queries.PerLayerClipSumQuery, l2_norm_clip=0.1, noise_multiplier=3.0
)
_PROGRAMS = {
    'federated': federated.FederatedTraining,
    'central': central.CentralTraining,
    'pretraining': pretraining.Pretraining,
    'pretraining_by_speaker': federated.FederatedTraining,
}
_PRIVATE = ('federated', 'pretraining', 'pretraining_by_speaker')
_KEYS = dict(noise_seed=1, sampler_seed=2)


@functools.lru_cache
def _shared() -> dict[str, dict[str, Any]]:
  """Arguments of each program; to build and trace them takes seconds."""
  data = client_data_lib.load(fakes.shared_split(**_CLIENTS))
  model = fakes.tiny_model(num_blocks=1, dropout=0.1)
  common = dict(
      configuration='SEED = 1\n',
      model=model,
      pipeline=fakes.tiny_pipeline(model, max_batch_sec=3.0),
      client_data=data,
  )
  predictor = best_rq.build(
      encoder=model.encoder,
      quantizer=quantizer_lib.RandomProjectionQuantizer(
          num_codes=16, num_stacked=3
      ),
      start_prob=0.1,
  )
  optimizer = tff.learning.optimizers.build_adam(0.01)
  steps = dict(optimizer=optimizer, seed=3)
  rounds = functools.partial(
      runs.federated, data, build_query=_BUILD_QUERY, optimizer=optimizer
  )
  return {
      'federated': _KEYS | rounds(model=model),
      'central': common | steps,
      'pretraining': common | steps | _KEYS | dict(
          model=predictor, batch_size=2, build_query=_BUILD_QUERY
      ),
      'pretraining_by_speaker': _KEYS | rounds(
          model=predictor, tokenizer=None
      ),
  }


_STEPS = (
    mock.patch.object(dp_sgd, 'DpSgd', runs.once(dp_sgd.DpSgd)),
    mock.patch.object(
        central_step, 'CentralStep', runs.once(central_step.CentralStep)
    ),
)


def setUpModule():
  for step in _STEPS:
    step.start()


def tearDownModule():
  for step in _STEPS:
    step.stop()
  _shared.cache_clear()


def _evaluator(look) -> mock.Mock:
  """An evaluator that calls `look` and returns made-up metrics."""

  def evaluate(unused_weights):
    look()
    return mock.Mock(metrics=lambda: {'word_error_rate': 0.5, 'accuracy': 0.5})

  return mock.Mock(side_effect=evaluate, client_data=None)


def _counts_rounds(name: str) -> bool:
  return _PROGRAMS[name] is federated.FederatedTraining


@parameterized.named_parameters(*((name, name) for name in _PROGRAMS))
class TrainingLoopTest(cases.TestCase):

  def train(self, name: str, run: str, number: int, **changes):
    """Trains `number` rounds; returns the results and what was printed."""
    total = 'num_rounds' if _counts_rounds(name) else 'num_steps'
    arguments = {'save_every': 2, 'evaluate_every': 2, total: number}
    return runs.train(
        _PROGRAMS[name],
        output_dir=self.path(run),
        **arguments | _shared()[name] | changes,
    )

  def metrics(self, run: str) -> list[dict[str, str]]:
    """The rows, without what tells the time."""
    return [
        {name: row[name] for name in row if not name.endswith('seconds')}
        for row in runs.metrics(self.path(run))
    ]

  def saved(self, run: str) -> list[int]:
    return sorted(checkpoints.state_paths(self.path(run, 'state')))

  def charged(self, run: str) -> int:
    return runs.charged(self.path(run))

  def assert_same(self, one: str, other: str) -> None:
    """The same bits of model, state and metrics, and as many charges."""
    states = [run_dir.newest_state_path(self.path(run)) for run in (one, other)]
    models = [self.path(run, run_dir.MODEL) for run in (one, other)]
    for (first, second), read in (
        (states, state_file.read_leaves), (models, model_file.read)
    ):
      left, right = read(first), read(second)
      self.assertEqual(list(left), list(right))
      for name, value in left.items():
        # Ledgers have names of their own, and inodes.
        if name not in ('ledger/digest', 'noise/file_identity'):
          self.assertEqual(repr(value), repr(right[name]), name)
          self.assertEqual(
              getattr(value, 'tobytes', bytes)(),
              getattr(right[name], 'tobytes', bytes)(),
              name,
          )
    self.assertEqual(self.metrics(one), self.metrics(other))
    self.assertEqual(self.charged(one), self.charged(other))

  def test_resumed_runs_end_in_the_bits_of_an_uninterrupted_one(self, name):
    self.train(name, 'whole', 5, evaluator=_evaluator(lambda: None))
    self.assertEqual(self.charged('whole'), 5 if name in _PRIVATE else 0)

    def interrupt():
      asyncio.current_task().cancel()

    # Ctrl-C while it evaluates after 2: that round is saved, or the one before.
    # Killed there: all are run again.
    kinds = (asyncio.CancelledError, interrupt), (KeyboardInterrupt, None)
    for run, (kind, look) in zip(('interrupted', 'killed'), kinds):
      look = look or mock.Mock(side_effect=KeyboardInterrupt)
      with self.assertRaises(kind):
        self.train(name, run, 5, evaluator=_evaluator(look))
      wanted = (1, 2) if look is interrupt else (0,)
      self.assertIn(self.saved(run)[-1], wanted)
      self.assertFalse(os.path.exists(self.path(run, run_dir.MODEL)))
      results, _ = self.train(name, run, 5, evaluator=_evaluator(lambda: None))
      self.assert_same(run, 'whole')
      # The results are of the whole run, not of its last part.
      for key in ('dev_word_error_rate', 'dev_accuracy'):
        self.assertEqual(results[key], {2: 0.5, 4: 0.5, 5: 0.5})
      seconds = metrics_file.read(self.path(run, run_dir.METRICS))[
          'seconds' if name == 'central' else 'not_private/seconds'
      ]
      self.assertAlmostEqual(
          results['seconds'], sum(seconds.values()), delta=0.1
      )
      with open(self.path(run, run_dir.RESULTS), encoding='utf-8') as f:
        self.assertEqual(json.load(f), json.loads(json.dumps(results)))

    # Once more: it is over, and nothing is trained, charged or released.
    self.train(name, 'whole', 5)
    self.assert_same('whole', 'killed')

  def test_on_a_terminal_progress_ends_its_line_before_results(self, name):
    class Terminal(io.StringIO):

      def isatty(self):
        return True

    with mock.patch.object(io, 'StringIO', Terminal):
      _, printed = self.train(name, 'run', 1)
    *_, ending = printed.split('\r\x1b[K')
    progress, *_ = ending.splitlines()
    self.assertRegex(progress, r'^[\w-]+: (round|step) 1 of 1(, .*)?$')
    self.assertNotRegex(progress, 'dev|Written')
    self.assertIn(f'\nWritten to {self.path("run")}: model', ending)

  def test_a_run_whose_first_state_cannot_be_saved_starts_again(self, name):
    save = mock.patch.object(
        checkpoints.StateManager, 'save', side_effect=OSError('full')
    )
    with save, self.assertRaisesRegex(OSError, 'full'):
      self.train(name, 'run', 1)
    # Its ledger is not locked by what failed in this process.
    self.train(name, 'run', 1)
    self.assertEqual(self.charged('run'), int(name in _PRIVATE))

  def test_a_round_is_charged_before_its_model_is_seen_or_saved(self, name):
    order, saved_weights = [], []
    save = checkpoints.StateManager.save

    async def look_and_save(manager, state, version, **secrets):
      order.append(('saved', version, self.charged('run')))
      saved_weights.append(state.process.global_model_weights)
      await save(manager, state, version, **secrets)

    before, listening = seen.listening(), set()

    def look():
      order.append(('evaluated', self.charged('run')))
      listening.update(seen.listening() - before)

    save_and_look = mock.patch.object(
        checkpoints.StateManager, 'save', look_and_save
    )
    evaluator = _evaluator(look)
    with save_and_look, seen.drawn_keys() as drawn:
      _, printed = self.train(
          name,
          'run',
          4,
          evaluator=evaluator,
          evaluate_every=1,
          save_every=1,
          keep_last=1,
          keep_every=3,
      )
    expected = [('saved', 0, 0)]
    for number in range(1, 5):
      charged = number if name in _PRIVATE else 0
      expected += [('evaluated', charged), ('saved', number, charged)]
    self.assertEqual(order, expected)
    self.assertEqual(self.saved('run'), [0, 3, 4])
    # What was evaluated are the weights of the round and not of another.
    for (evaluated,), saved, before in zip(
        (call.args for call in evaluator.call_args_list),
        saved_weights[1:],
        saved_weights,
    ):
      self.assertFalse(np.array_equal(fakes.flat(saved), fakes.flat(before)))
      np.testing.assert_array_equal(fakes.flat(evaluated), fakes.flat(saved))
    # The run has ended: no file of it holds a key that it ever had.
    self.assertGreater(len(drawn), 4 if name in _PRIVATE else 0)
    self.assertEmpty(seen.files_with(drawn, self.path('run')))
    # Neither people nor words nor states are in the open; nothing listens.
    self.assertEqual(listening, set())
    self.assertEmpty(seen.readable_states(self.path('run')))
    text = printed + seen.text(self.path('run'))
    self.assertIn('num_', text)
    for word in (*_CLIENTS, *fakes.WORDS[:-1]):
      self.assertNotRegex(text, rf'\b{word}\b')

  def test_no_draws_of_noise_and_cohorts_share_a_stream_or_a_key(self, name):
    if name not in _PRIVATE:
      return  # It draws neither.
    # Of one seed: a sampler that took the noise's key would show.
    with seen.opened_streams() as opened:
      self.train(name, 'run', 3, **dict.fromkeys(_KEYS, 1))
    self.assertLen(set(opened), len(opened))
    by_purpose = {True: [], False: []}
    for each in opened:
      by_purpose[each.stream == cohorts._STREAM].append(each.key)  # pylint: disable=protected-access
    # A cohort a round; of noise, radii and angles a tensor.
    self.assertLen(by_purpose[True], 3)
    self.assertLen(set(by_purpose[True]), 3)
    self.assertGreaterEqual(len(by_purpose[False]), 3 * 2 * 2)
    self.assertLen(set(by_purpose[False]), 3)
    self.assertNoCommonElements(*by_purpose.values())

  def test_divergence_ends_a_run_with_the_last_good_round(self, name):
    program = _PROGRAMS[name]
    process_round = program.process_round

    def diverge(self, loop_state, result, *, round_num, shows_exact):
      if round_num == 3:
        state = result.output.state
        weights = {
            key: value * np.inf
            for key, value in state.global_model_weights.items()
        }
        state = state._replace(global_model_weights=weights)
        result = result._replace(output=result.output._replace(state=state))
        if _counts_rounds(name):
          norms = result.output.metrics['finalizer']
          norms['weights_norm'] = np.float32(np.inf)
      return process_round(
          self, loop_state, result, round_num=round_num, shows_exact=shows_exact
      )

    with mock.patch.object(program, 'process_round', diverge):
      with self.assertRaisesRegex(faults.DivergedError, ' diverged'):
        self.train(name, 'run', 5, save_every=5, evaluate_every=5)
    self.assertEqual(self.saved('run'), [0, 2])
    self.assertFalse(os.path.exists(self.path('run', run_dir.MODEL)))
    # The round that failed is charged, and is charged once when repeated.
    self.assertEqual(self.charged('run'), 3 if name in _PRIVATE else 0)
    self.train(name, 'run', 3, save_every=5, evaluate_every=5)
    self.assertEqual(self.charged('run'), 3 if name in _PRIVATE else 0)

  def test_unusable_settings_are_refused_before_anything_is_written(
      self, name
  ):
    # tests/bin/bad_input_test.py has those of single settings.
    bad = [
        (dict(keep_last=0, keep_every=-1), 1, '(?s)keep_last.*keep_every'),
        (
            dict(init_from_run=self.path('x', '..', 'run')),
            0,
            '(?s)must be.*contains no trained model',
        ),
    ]
    if name in _PRIVATE:
      bad += [
          (dict(noise_seed=-1, sampler_seed=-1), 1, '(?s)noise_s.*sampler_s'),
          (dict(target_epsilon=0, delta=1e-3), 1, 'must be positive'),
          (dict(target_epsilon=1e-6, delta=1e-3), 1, 'after the first round'),
      ]
    for changes, number, message in bad:
      with self.assertRaisesRegex(ValueError, message):
        self.train(name, 'run', number, **changes)
      self.assertFalse(os.path.exists(self.path('run')), changes)

  def test_the_budget_ends_a_private_run(self, name):
    if name not in _PRIVATE:
      return
    keys = dict(noise_seed=None, sampler_seed=None, delta=1e-3)
    results, _ = self.train(name, 'three', 3, **keys)
    # PLD leads; the loop's grid is coarser than the report's.
    target = results['privacy']['epsilon'] * 1.002
    self.assertLess(target, results['privacy']['epsilon_rdp'])
    results, _ = self.train(name, 'run', 9, target_epsilon=target, **keys)
    self.assertEqual(self.charged('run'), 3)
    self.assertEqual(self.saved('run')[-1], 3)
    self.assertLess(results['privacy']['epsilon'], target)


class FormatMetricsTest(parameterized.TestCase):

  @parameterized.parameters(
      (2.4401, '2.45'), (np.inf, 'infinite'), (np.nan, 'none')
  )
  def test_a_displayed_epsilon_is_rounded_up(self, epsilon, shown):
    found = training_loop.format_metrics(
        {'epsilon': epsilon, 'epsilon_rdp': 3.0},
        target_epsilon=None,
        is_private=True,
    )
    self.assertEqual(found, {'epsilon (PLD)': shown})
    # Where PLD does not take the rounds, both are RDP's.
    found = training_loop.format_metrics(
        {'epsilon': 2.0, 'epsilon_rdp': 2.0},
        target_epsilon=4.0,
        is_private=True,
    )
    self.assertEqual(found, {'epsilon (RDP)': '2 of 4'})

  def test_an_epsilon_that_is_not_private_is_marked(self):
    found = training_loop.format_metrics(
        {'epsilon': 499.9, 'epsilon_rdp': 499.9},
        target_epsilon=600.0,
        is_private=False,
    )
    self.assertEqual(found, {'epsilon (RDP)': '500 of 600 (NOT PRIVATE)'})

  def test_an_infinite_epsilon_leaves_room_for_rates_on_a_terminal(self):
    found = training_loop.format_metrics(
        {
            'epsilon': np.inf,
            'epsilon_rdp': np.inf,
            'dev_word_error_rate': 0.7216,
            'dev_character_error_rate': 0.2703,
        },
        target_epsilon=None, is_private=False, round_name='round 10',
    )
    line = ', '.join(f'{name} {value}' for name, value in found.items())
    self.assertEqual(
        line,
        'epsilon (RDP) infinite, dev WER 72.2 %, CER 27.0 % (round 10)',
    )
    self.assertLess(
        len(f'federated: round 13 of 20, {line}, 12 s left'), 100
    )

  def test_rates_name_their_round(self):
    found = training_loop.format_metrics(
        {'dev_word_error_rate': 0.3664, 'dev_character_error_rate': 0.0995},
        target_epsilon=None,
        is_private=True,
        round_name='round 10',
    )
    self.assertEqual(found, {'dev': 'WER 36.6 %, CER 10.0 % (round 10)'})
