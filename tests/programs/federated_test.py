"""Tests of tff_asr.programs.federated on tiny shards.

One learning process and one context serve all tests: building and tracing them
takes seconds, running a round does not.
"""

import collections
from collections.abc import Callable
import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import shutil
import tempfile
from typing import Any
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests import seen
from tests.learning import tiny
from tests.programs import runs
from tff_asr import files
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.execution import client_round
from tff_asr.execution import multi_device
from tff_asr.features import front_end as front_end_lib
from tff_asr.learning import fed_avg
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import privacy_report
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import queries
from tff_asr.programs import evaluation
from tff_asr.programs import faults
from tff_asr.programs import federated
from tff_asr.programs import private_rounds
from tff_asr.programs import public_data
from tff_asr.reports import runs as reports_runs
from tff_asr.storage import run_dir
from tff_asr.storage import state_file


_CLIENTS = {'ann': 2, 'bob': 2, 'cai': 1, 'dee': 1}
_COHORT_SIZE = 2
# A multiplier at which two rounds of half the population cost little.
_NOISE = 30.0
_CONFIGURATION = 'SEED = 1\nNUM_ROUNDS = 2\nEVALUATE_EVERY = 2\n'
_LONGER = 'SEED = 1\nNUM_ROUNDS = 5\nEVALUATE_EVERY = 1\n'


@functools.lru_cache
def _shared() -> dict[str, Any]:
  """Arguments of all runs."""
  return runs.federated(
      client_data_lib.load(fakes.shared_split(**_CLIENTS)),
      build_query=functools.partial(
          queries.PerLayerClipSumQuery,
          l2_norm_clip=0.01,
          noise_multiplier=_NOISE,
          clipping=clipping_lib.Clipping(split='dim'),
      ),
      cohort_size=_COHORT_SIZE,
      model=tiny.recognizer(dropout=0.1),
  )


@functools.lru_cache
def _evaluator() -> evaluation.Evaluator:
  """Decodes two others' utterances."""
  return evaluation.Evaluator(
      model=_shared()['model'],
      pipeline=_shared()['pipeline'],
      client_data=client_data_lib.load(fakes.shared_split(eve=3, fay=3)),
  )


def tearDownModule():
  _shared.cache_clear()
  _evaluator.cache_clear()


class _Killed(BaseException):
  """Ends a run at once; errors and interrupts save what there is."""


class _Changing(tff.framework.AsyncContext):
  """A context that calls `change` with each output and its number."""

  def __init__(self, change: Callable[[Any, int], None], *, context=None):
    self._change = change
    self._context = context or _shared()['context']
    self._calls = 0

  async def invoke(self, comp, arg):
    self._calls += 1
    output = await self._context.invoke(comp, arg)
    self._change(output, self._calls)
    return output


def _failing(call: int, *, context=None) -> _Changing:
  """A context that ends the program at once in the n-th call."""

  def kill(unused_output, number):
    if number == call:
      raise _Killed

  return _Changing(kill, context=context)


def _diverging(call: int) -> _Changing:
  """A context on which the n-th call's weights are not finite."""

  def diverge(output, number):
    if number == call:
      output.metrics['finalizer']['weights_norm'] = np.float32(np.inf)

  return _Changing(diverge)


def _perturbing() -> _Changing:
  """A context on which each round comes out with slightly other weights."""

  def perturb(output, unused_number):
    if hasattr(output, 'state'):
      weights = output.state.global_model_weights
      name = next(iter(weights))
      weights[name] = weights[name] * (1 + 1e-6)

  return _Changing(perturb)


def _train(output_dir: str, **changes) -> tuple[dict, str]:
  """Results, and what was printed."""
  settings = dict(
      output_dir=output_dir,
      configuration=_CONFIGURATION,
      num_rounds=2,
      delta=1e-5,
  )
  return runs.train(
      federated.FederatedTraining, **_shared() | settings | changes
  )


def _weights(run: str) -> dict[str, np.ndarray]:
  return run_dir.read_model(run, model=_shared()['model'], tokens=' abc')


def _read(path: str) -> str:
  return pathlib.Path(path).read_text()


def _report(run: str) -> privacy_report.PrivacyReport:
  """The privacy report of a run's ledger, by RDP."""
  return privacy_report.of_ledger(
      run_dir.read_ledger(run), delta=1e-5, accountant='rdp'
  )


def _rounds(num_rounds: int) -> accounting.RoundGroup:
  """The tests' rounds."""
  return accounting.RoundGroup(
      sampling=accounting.Sampling(
          kind='poisson', cohort_size=_COHORT_SIZE, population=len(_CLIENTS)
      ),
      noise_multiplier=_NOISE,
      count=num_rounds,
      sampler_epsilon=queries.sampler_epsilon(
          _NOISE,
          num_elements=weights_lib.num_parameters(_shared()['model'].specs),
      ),
  )


def _epsilon(num_rounds: int) -> float:
  """What the tests' rounds cost by RDP at their delta."""
  return accounting.epsilon([_rounds(num_rounds)], delta=1e-5)


def _target(num_rounds: int) -> float:
  """A target that allows this many rounds by PLD, and fewer by RDP."""
  target = accounting.leading_epsilon([_rounds(num_rounds)], delta=1e-5) * 1.001
  assert target < _epsilon(num_rounds)
  return target


class _RunTestCase(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.run = self.path('runs', 'one')

  def file(self, name: str) -> str:
    return os.path.join(self.run, name)

  def metrics(self, run: str = '') -> list[dict[str, str]]:
    return runs.metrics(run or self.run)

  def charged(self, run: str = '') -> int:
    return runs.charged(run or self.run)


class WholeRunTest(_RunTestCase):
  """A run of two rounds, as it is left."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.whole = os.path.join(
        cls.enterClassContext(tempfile.TemporaryDirectory()), 'one'
    )
    cls.results, cls.printed = _train(cls.whole, evaluator=_evaluator())

  def setUp(self):
    super().setUp()
    self.run = self.whole

  def test_writes_everything_and_states_the_privacy(self):
    results, printed = self.results, self.printed
    self.assertEqual(_read(self.file('config.gin')), _CONFIGURATION)
    self.assertEqual(
        json.loads(_read(self.file('results.json'))),
        json.loads(json.dumps(results)),
    )
    self.assertEqual(results['rounds'], 2)
    self.assertEqual(results['population'], 4)
    self.assertEqual(results['privacy']['delta'], 1e-5)
    self.assertEqual(results['cohort_size'], _COHORT_SIZE)
    self.assertEqual(list(results['dev_word_error_rate']), [2])
    self.assertEqual(
        json.loads(_read(self.file('privacy_report.json'))),
        json.loads(json.dumps(results['privacy'])),
    )
    report = _read(self.file('privacy_report.txt'))
    self.assertIn(
        f'{results["privacy"]["verdict"]}\nEpsilon: ', printed
    )
    self.assertRegex(
        printed, r'(?m)^dev WER [\d.]+ %, CER [\d.]+ % \(round 2\)$'
    )
    self.assertIn(f'Next: python bin/transcribe.py --run={self.run} ', printed)
    for word in ('speaker', 'trusted', 'delta', 'epsilon', '30'):
      self.assertIn(word, report)
    self.assertNotIn('NOT PRIVATE', report + printed)
    # It started from no other run.
    self.assertEqual(results['privacy']['public_inputs'], ['the dev set'])
    self.assertIsNone(results['privacy']['public_model'])

    contents = ledger_lib.read(self.file('ledger.jsonl'))
    self.assertEqual(contents.invalidations, ())
    (rounds,) = contents.rounds
    self.assertEqual(rounds.count, 2)
    self.assertEqual(rounds.noise_multiplier, _NOISE)
    self.assertEqual(rounds.sampling.kind, 'poisson')
    self.assertEqual(rounds.sampling.sampling_prob, 0.5)

    rows = self.metrics()
    # As the metrics have it: the noise's norm over the clip, in each round.
    noise = float(rows[0]['aggregator/noise_norm']) / float(
        rows[0]['aggregator/dp_query_metrics/l2_norm_clip']
    )
    num_elements = weights_lib.num_parameters(_shared()['model'].specs)
    self.assertAlmostEqual(
        noise / (math.sqrt(num_elements) * _NOISE / _COHORT_SIZE), 1, places=5
    )
    self.assertAlmostEqual(rounds.noise_over_clip / noise, 1, places=5)
    (group,) = results['privacy']['groups']
    self.assertEqual(group['noise_over_clip'], rounds.noise_over_clip)
    self.assertAlmostEqual(
        results['privacy']['rounds_over_noise'] * noise, math.sqrt(2), places=4
    )
    by_layer = results['privacy']['layer_noise']
    self.assertEqual([*by_layer], sorted(_shared()['model'].specs))
    # C_h is in proportion to sqrt(D_h), so all layers have the same ratio.
    for layer, value in by_layer.items():
      self.assertAlmostEqual(value / noise, 1, places=5, msg=layer)
    self.assertIn(f'noise / C           {noise:.3g} a round', report)
    self.assertIn(f'Noise / C a round: {noise:.3g}; sqrt', printed)
    self.assertEqual([row['round'] for row in rows], ['1', '2'])
    self.assertLess(float(rows[0]['epsilon']), float(rows[1]['epsilon']))
    self.assertEqual(rows[0]['dev_word_error_rate'], '')
    self.assertEqual(
        float(rows[1]['dev_word_error_rate']),
        results['dev_word_error_rate'][2],
    )
    self.assertAlmostEqual(float(rows[0]['finalizer/learning_rate']), 0.01)
    self.assertEqual(
        set(rows[1]),
        {
            'round', 'epsilon', 'epsilon_rdp',
            'dev_character_error_rate', 'dev_loss', 'dev_sentence_error_rate',
            'dev_token_error_rate', 'dev_word_error_rate', 'num_roll_backs',
            'aggregator/dp_query_metrics/l2_norm_clip',
            'aggregator/dp_query_metrics/noise_stddev_on_sum',
            'aggregator/noise_norm',
            'finalizer/learning_rate', 'finalizer/update_norm',
            'finalizer/weights_norm',
        },
    )
    num_bytes = 4 * weights_lib.num_parameters(_shared()['model'].specs)
    self.assertEqual(
        results['bytes_per_client_and_round'],
        {'download_bytes': num_bytes, 'upload_bytes': num_bytes},
    )
    # The model that was evaluated is the one that was written.
    evaluated = _evaluator()(_weights(self.run))
    self.assertEqual(
        evaluated.word_error_rate, results['dev_word_error_rate'][2]
    )
    # Rates are often those of other weights, too; the loss is not.
    self.assertAlmostEqual(
        float(rows[1]['dev_loss']) / evaluated.loss, 1, places=6
    )

  def test_where_an_epsilon_is_claimed_nothing_exact_is_shown(self):
    printed = self.printed
    for text in (seen.text(self.run), str(self.results), printed):
      self.assertNotIn('not_private', text)
      for name in ('train_loss', 'signal_norm', 'num_clients', 'seconds'):
        self.assertNotIn(name, text)
    for figure in ('loss ', 'clients ', 'audio '):
      self.assertNotRegex(printed, rf'round 2 of 2.*\b{figure}')
    self.assertRegex(
        printed,
        r'round 2 of 2.*epsilon \(PLD\) [\d.]+, dev WER .* \(round 2\)',
    )
    # The number of the round, in place of the time; the settings come first.
    (events,) = pathlib.Path(self.run, 'tensorboard').iterdir()
    times = [
        event.wall_time
        for event in tf.compat.v1.train.summary_iterator(str(events))
    ]
    self.assertEqual(times, [0, 0, 1, 2])
    (read,) = reports_runs.read([self.run])
    self.assertLen(read.metric('epsilon'), 2)
    self.assertEmpty(read.metric('train_loss'))

  def test_digests_of_the_clients_are_only_in_a_file_of_the_owner(self):
    source, dev = public_data.read(self.run)
    self.assertEqual((source.is_private, source.role), (True, 'trained'))
    self.assertEqual((dev.is_private, dev.role), (False, 'dev'))
    digest = source.speakers_sha256
    self.assertEqual(
        seen.files_with([digest.encode(), bytes.fromhex(digest)], self.run),
        [self.file(public_data.FILE)],
    )


class FederatedTest(_RunTestCase):

  def test_one_setting_shows_exact_metrics_and_every_report_says_so(self):
    warning = 'WARNING: exact metrics of training were shown'
    _train(self.run, num_rounds=1)
    results, printed = _train(self.run, num_rounds=2, exact_metrics=True)
    self.assertIn('loss ', printed)
    self.assertGreater(results['seconds'], 0)
    for text in (
        ' '.join(results['privacy']['warnings']),
        printed,
        _read(self.file('privacy_report.txt')),
        str(_report(self.run)),
    ):
      self.assertIn(f'{warning} (EXACT_METRICS, from round 2', ' '.join(
          text.split()
      ))
    first, second = self.metrics()
    exact = {name for name in second if name.startswith('not_private/')}
    self.assertEqual(
        exact,
        {
            f'not_private/{name}'
            for name in (
                'audio_sec', 'clipped_clients',
                'clipped_delta_norm', 'clipped_layers', 'delta_norm',
                'download_bytes',
                'loss_after', 'loss_before', 'num_clients', 'num_failed',
                'num_left_out',
                'num_non_finite', 'num_steps', 'num_utterances', 'seconds',
                'signal_norm', 'train_loss', 'upload_bytes',
            )
        },
    )
    self.assertEqual({first[name] for name in exact}, {''})
    num_bytes = 4 * weights_lib.num_parameters(_shared()['model'].specs)
    clients = float(second['not_private/num_clients'])
    for name in ('download_bytes', 'upload_bytes'):
      self.assertEqual(
          float(second[f'not_private/{name}']), clients * num_bytes
      )
    # What was shown stays shown: later, and of what starts from the model.
    other = os.path.join(self.root, 'other')
    _train(self.run, num_rounds=3)
    results, _ = _train(other, num_rounds=1, init_from_run=self.run)
    self.assertStartsWith(results['privacy']['warnings'][0], warning)
    notes = ledger_lib.read(os.path.join(other, 'ledger.jsonl')).notes
    self.assertEqual(notes, (ledger_lib.Note('exact_metrics', 1),))
    self.assertNotIn('not_private', seen.text(other))

  @parameterized.parameters('noise_seed', 'sampler_seed')
  def test_a_fixed_seed_makes_every_output_say_not_private(self, name):
    results, printed = _train(self.run, **{name: 3})
    files_of_run = ('privacy_report.txt', 'privacy_report.json', 'results.json')
    for text in (
        printed,
        json.dumps(results),
        *(_read(self.file(each)) for each in files_of_run),
    ):
      self.assertIn('NOT PRIVATE', text)
      self.assertIn(name.upper(), text)
    header = json.loads(_read(self.file('ledger.jsonl')).splitlines()[0])
    (reason,) = header['invalidations']['speaker']
    self.assertRegex(reason, f'^{name.upper()} fixes a key')
    self.assertEqual({row['epsilon'] for row in self.metrics()}, {'inf'})

  def test_a_dev_set_of_private_speakers_is_refused_or_not_private(self):
    shared = mock.Mock(client_data=_shared()['client_data'])
    shared.return_value.metrics.return_value = {'word_error_rate': 0.5}
    arguments = dict(num_rounds=1, evaluator=shared)
    reason = 'the dev set has 4 of the 4 private speakers'
    with self.assertRaises(ValueError) as context:
      _train(self.run, **arguments)
    self.assertStartsWith(str(context.exception), reason)
    self.assertNotIn('\n', str(context.exception))
    self.assertFalse(os.path.exists(self.run))
    results, printed = _train(
        self.run, on_shared_data='not_private', **arguments
    )
    self.assertIn(f'NOT PRIVATE: {reason}', ' '.join(printed.split()))
    self.assertEqual(results['privacy']['reasons'], [reason])
    self.assertEqual(results['privacy']['epsilon'], 'inf')
    header = json.loads(_read(self.file('ledger.jsonl')).splitlines()[0])
    self.assertEqual(header['invalidations'], {'speaker': [reason]})
    self.assertEqual({row['epsilon'] for row in self.metrics()}, {'inf'})
    # A run that began with other data cannot go on with these.
    other = os.path.join(self.root, 'other')
    results, _ = _train(other, num_rounds=1)
    self.assertIn('no private speaker', results['privacy']['public_check'])
    with self.assertRaisesRegex(ValueError, 'which the ledger of .* not say'):
      _train(
          other,
          num_rounds=2,
          evaluator=shared,
          on_shared_data='not_private',
      )

  def test_weights_by_others_data_are_refused_with_noise(self):
    data = client_data_lib.SpeechClientData(
        _shared()['client_data'].client_index, num_processes=2
    )
    with self.assertRaisesRegex(ValueError, 'which no noise makes private'):
      _train(self.run, client_data=data)
    self.assertFalse(os.path.exists(self.file('ledger.jsonl')))

  def test_the_report_names_the_public_model_of_the_front_end(self):
    public = front_end_lib.PublicSource(
        name='whisper-tiny.en', licence='MIT', source='here', sha256='1a5a' * 16
    )
    pipeline = _shared()['pipeline']
    front_end = dataclasses.replace(pipeline.front_end, public_model=public)
    results, printed = _train(
        self.run,
        num_rounds=1,
        pipeline=dataclasses.replace(pipeline, front_end=front_end),
    )
    self.assertEqual(results['privacy']['public_model'], public._asdict())
    self.assertIn(
        'public model whisper-tiny.en (licence MIT, SHA-',
        ' '.join(_read(self.file('privacy_report.txt')).split()),
    )
    self.assertNotIn('SHA-', printed)

  def test_layer_scores_pass_on_the_ledger_of_their_run_and_no_key(self):
    _train(self.run, num_rounds=1)
    second = os.path.join(self.root, 'second')
    results, _ = _train(second, num_rounds=1, scores_run=self.run)
    self.assertEqual(results['privacy']['inherited_rounds'], 1)
    self.assertEqual(results['privacy']['rounds'], 2)
    self.assertEqual(
        results['privacy']['public_inputs'], ['the layer scores (SCORES_RUN)']
    )
    # The same round of the same weights, under other keys.
    first, other = _weights(self.run), _weights(second)
    self.assertTrue(np.any(first['head/kernel'] != other['head/kernel']))

  def test_rounds_without_clients_work(self):
    # One of four is expected: no client joins in .75^4 = .32 of the rounds.
    draw = functools.partial(cohorts.poisson, cohort_size=1)
    for seed in range(100):
      source, sizes = draw(list(_CLIENTS), key=keys.from_seed(seed)), []
      state = source.initial_state()
      for _ in range(2):
        cohort, state = source.draw(state)
        sizes.append(len(cohort))
        # A run's key is another one in each round.
        state = state._replace(
            key=keys.derive(state.key, purpose='next round')
        )
      if sizes[0] == 0 and sizes[1] > 0:
        break
    results, printed = _train(
        self.run, build_cohorts=draw, sampler_seed=seed, num_rounds=2
    )
    self.assertEqual(results['rounds'], 2)
    self.assertIn('round 1 of 2, loss none, ', printed)
    rows = self.metrics()
    self.assertEqual(rows[0]['not_private/train_loss'], 'nan')
    self.assertEqual(float(rows[0]['not_private/num_clients']), 0)
    self.assertEqual(float(rows[1]['not_private/num_clients']), sizes[1])
    self.assertGreater(float(rows[1]['not_private/train_loss']), 0)
    # Noise moves the model all the same.
    self.assertGreater(float(rows[0]['finalizer/update_norm']), 0)

  def test_starts_from_a_pretrained_encoder_and_states_its_cost_apart(self):
    start = os.path.join(self.root, 'pretrained')
    encoder = runs.write_pretrained(
        start, model=_shared()['model'], num_steps=3
    )
    results, printed = _train(
        self.run, init_from_run=start, num_rounds=1, keep_every=1
    )
    self.assertIn('the encoder is taken', printed)
    # The first saved state has the seed's encoder, and a new head.
    leaves = state_file.read_leaves(
        self.file('state/state_00000000.safetensors')
    )
    for name in encoder:
      np.testing.assert_array_equal(
          leaves[f'process/global_model_weights/{name}'], encoder[name]
      )

    # Two guarantees, neither of which holds the other's rounds.
    privacy = results['privacy']
    self.assertEqual(
        (privacy['privacy_unit'], privacy['rounds']), ('speaker', 1)
    )
    self.assertEqual(privacy['epsilon_rdp'], _epsilon(1))
    (other,) = privacy['other_units']
    self.assertEqual((other['privacy_unit'], other['rounds']), ('example', 3))
    self.assertEqual(printed.count('Privacy of each '), 2)
    report = _read(self.file('privacy_report.txt'))
    self.assertEqual(report.count('Privacy report'), 2)
    self.assertIn('other units', report)
    report = _report(self.run)
    self.assertEqual(
        (report.privacy_unit, report.epsilon), ('speaker', _epsilon(1))
    )
    self.assertEqual(
        [each.privacy_unit for each in report.other_units], ['example']
    )

    # It resumes from the one ledger that holds both.
    results, _ = _train(self.run, init_from_run=start)
    self.assertEqual(results['privacy']['rounds'], 2)


class FaultsTest(_RunTestCase):
  """Clients that fail, and models that diverge."""

  @contextlib.contextmanager
  def damaged_client(self):
    """One byte of the first client's audio is another one meanwhile."""
    corpus = _shared()['client_data'].corpus
    path = os.path.join(corpus.path, 'shard-00000.tfrecord')
    fakes.damage(path, offset=2000)
    try:
      yield
    finally:
      fakes.damage(path, offset=2000)

  def test_a_client_that_cannot_be_read_is_left_out_counted_and_unnamed(self):
    everyone = dict(
        build_cohorts=cohorts.full,
        context=multi_device.build_async_context(
            multi_device.Settings(max_failed_share=0.25)
        ),
        max_failed_share=0.25,
        exact_metrics=True,
    )
    with self.damaged_client(), self.assertLogs('absl', 'WARNING') as logs:
      _train(self.run, **everyone)
      for row in self.metrics():
        self.assertEqual(float(row['not_private/num_failed']), 1)
        self.assertEqual(float(row['not_private/num_clients']), 3)
      self.assertEqual(self.charged(), 2)
      found = [line for line in logs.output if 'left out' in line]
      self.assertLen(found, 2)
      self.assertRegex(
          found[0],
          r'1 of 4 clients of round 1 failed .*the record at byte 0 of .* is '
          r'missing or damaged',
      )
      for client_id in _CLIENTS:
        self.assertNotRegex(' '.join(logs.output), rf'\b{client_id}\b')
      # A smaller share ends the run, which resumes with repaired data.
      second = os.path.join(self.root, 'second')
      # A new context, which has cached no data.
      everyone['context'] = multi_device.build_async_context()
      with self.assertRaisesRegex(
          client_round.ClientError, r'^Client 0 of 4 .*the record at byte 0'
      ):
        _train(second, **everyone)
    # Who came, how many failed and why are private otherwise.
    everyone['exact_metrics'] = False
    with self.damaged_client(), self.assertNoLogs('absl', 'WARNING'):
      with self.assertRaisesRegex(
          faults.TooManyFailuresError, '^more clients of round 1 failed than'
      ) as raised:
        _train(second, **everyone)
    for text in ('4', 'byte', 'shard'):
      self.assertNotIn(text, str(raised.exception))
    results, _ = _train(second, **everyone)
    self.assertEqual(results['rounds'], 2)

  def test_an_undone_round_stays_charged_and_training_continues(self):
    settings = dict(
        num_rounds=3,
        save_every=10,
        noise_seed=1,
        sampler_seed=2,
        on_divergence='roll_back',
    )
    whole = os.path.join(self.root, 'whole')
    with self.assertLogs('absl', 'WARNING') as logs:
      _train(whole, context=_diverging(3), **settings)
    self.assertIn('Round 2 diverged and was undone', ''.join(logs.output))
    self.assertEqual(self.charged(whole), 4)
    rows = self.metrics(whole)
    self.assertEqual([row['round'] for row in rows], ['1', '2', '3'])
    self.assertEqual(
        [row['num_roll_backs'] for row in rows], ['0', '1', '1']
    )
    # Another cohort, since its sampling is what the accounting counts on.
    with open(os.path.join(whole, 'ledger.jsonl'), encoding='utf-8') as f:
      lines = [json.loads(line) for line in f][1:]
    self.assertEqual([line['round_num'] for line in lines], [0, 1, 2, 3])
    self.assertLen({line['identity'] for line in lines}, 4)

    # Killed in the last round, with nothing saved but the beginning: again the
    # same rounds, the undone one included, and no charge but the last.
    with self.assertRaises(_Killed):
      _train(self.run, context=_failing(5, context=_diverging(3)), **settings)
    self.assertEqual(self.charged(), 3)
    _train(self.run, context=_diverging(3), **settings)
    self.assertEqual(self.charged(), 4)
    first, second = _weights(whole), _weights(self.run)
    for name, value in first.items():
      self.assertEqual(value.tobytes(), second[name].tobytes(), name)


class LedgerTest(_RunTestCase):
  """What runs charge cannot be overspent, and noise covers one sum."""

  def stop_in_round(self, number: int, **changes) -> None:
    """A run of 4 rounds, saved after 2, that a Ctrl-C ends in this round."""
    with self.assertRaises(_Killed):
      _train(
          self.run,
          num_rounds=4,
          save_every=2,
          context=_failing(number + 1),
          **changes,
      )

  def secrets(self, run: str) -> dict[str, bytes]:
    """The keys of a run that has not ended."""
    leaves = state_file.read_leaves(os.path.join(run, run_dir.SECRETS))
    names = ('noise/key', 'sampler_key')
    return {name: leaves[name].tobytes() for name in names}

  def test_a_target_epsilon_ends_the_run_before_it_is_exceeded(self):
    target = _target(3)
    results, _ = _train(
        self.run, num_rounds=10, target_epsilon=target, save_every=5,
        evaluator=_evaluator(),
    )
    self.assertEqual(results['rounds'], 3)
    self.assertEqual(self.charged(), 3)
    self.assertLessEqual(results['privacy']['epsilon'], target)
    # The last round counts as such: evaluated, saved.
    self.assertEqual(list(results['dev_word_error_rate']), [3])
    again, _ = _train(self.run, num_rounds=10, target_epsilon=target)
    self.assertEqual((again['rounds'], self.charged()), (3, 3))
    longer, _ = _train(
        self.run, num_rounds=4, target_epsilon=_target(5)
    )
    self.assertEqual(longer['rounds'], 4)
    self.assertEqual(self.charged(), 4)

  def test_a_repeated_round_is_not_charged_against_the_target_again(self):
    self.stop_in_round(4)
    # More rounds are another text, but the same rounds.
    results, _ = _train(
        self.run,
        configuration=_LONGER,
        num_rounds=5,
        target_epsilon=_target(3),
    )
    self.assertEqual((results['rounds'], self.charged()), (3, 3))

  def test_a_run_whose_end_was_changed_reports_it_permanently(self):
    ledger = os.path.join(self.run, 'ledger.jsonl')
    _train(self.run, num_rounds=1)
    _train(self.run, num_rounds=2)
    self.assertEmpty(ledger_lib.read(ledger).notes)
    for num_rounds in (3, 4):
      _train(self.run, configuration=_LONGER, num_rounds=num_rounds)
    _train(self.run, num_rounds=4)
    self.assertEqual(
        ledger_lib.read(ledger).notes, (ledger_lib.Note('length_changed', 2),)
    )
    self.assertRegex(
        ' '.join(_read(self.file('privacy_report.txt')).split()),
        'changed, first after 2 charged rounds',
    )

  def test_a_run_from_another_run_s_model_inherits_its_ledger(self):
    second = os.path.join(self.root, 'second')
    _train(self.run, num_rounds=3)
    results, printed = _train(second, num_rounds=2, init_from_run=self.run)
    self.assertEqual(self.charged(second), 5)
    self.assertEqual(results['privacy']['rounds'], 5)
    self.assertAlmostEqual(results['privacy']['epsilon_rdp'], _epsilon(5))
    self.assertIn('Privacy of each speaker: ', printed)
    # Said before the first round: of 3 rounds, and of 5.
    before, after = (
        privacy_report.format_epsilon(
            accounting.leading_epsilon([_rounds(count)], delta=1e-5)
        )
        for count in (3, 5)
    )
    self.assertIn(
        f'privacy: epsilon {before} -> {after} at delta 1e-05: private\n',
        printed,
    )
    self.assertIn(
        '3 of these rounds belong to runs',
        _read(os.path.join(second, 'privacy_report.txt')),
    )
    self.assertAlmostEqual(
        _report(second).epsilon, _epsilon(5)
    )
    # The sum counts against a target, too.
    third = os.path.join(self.root, 'third')
    with self.assertRaisesRegex(
        ValueError, r'with those of INIT_FROM_RUN \(5\)'
    ):
      _train(third, init_from_run=second, target_epsilon=_target(5))
    results, _ = _train(third, init_from_run=second, target_epsilon=_target(6))
    self.assertEqual(results['rounds'], 1)

  def test_invalidations_of_the_seed_run_apply_to_the_run(self):
    second = os.path.join(self.root, 'second')
    _train(self.run, num_rounds=1, noise_seed=1)
    # Noise that anyone can compute protects no one.
    arguments = dict(num_rounds=1, init_from_run=self.run)
    with self.assertRaisesRegex(ValueError, 'has 4 of the 4 private speakers'):
      _train(second, **arguments)
    results, printed = _train(second, on_shared_data='not_private', **arguments)
    self.assertFalse(results['privacy']['private'])
    self.assertIn('NOISE_SEED fixes a key', printed)
    self.assertIn('has 4 of the 4 private speakers', printed)

  def test_a_ledger_that_was_taken_away_or_cut_is_refused(self):
    _train(self.run)
    second = os.path.join(self.root, 'second')
    text = _read(self.file('ledger.jsonl'))
    lines = text.splitlines(keepends=True)
    files.write_text(self.file('ledger.jsonl'), ''.join(lines[:-1]))
    for arguments in (
        dict(output_dir=self.run, num_rounds=3),
        dict(output_dir=second, init_from_run=self.run),
    ):
      with self.assertRaisesRegex(ledger_lib.LedgerError, 'was shortened'):
        _train(**arguments)
    with self.assertRaisesRegex(ledger_lib.LedgerError, 'was shortened'):
      run_dir.read_ledger(self.run)
    os.remove(self.file('ledger.jsonl'))
    for arguments in (
        dict(output_dir=self.run, num_rounds=3),
        dict(output_dir=second, init_from_run=self.run),
    ):
      with self.assertRaisesRegex(ledger_lib.LedgerError, 'is missing'):
        _train(**arguments)
    self.assertFalse(os.path.exists(second))
    # Nor does it help to remove the states as well.
    shutil.rmtree(self.file('state'))
    files.write_text(self.file('ledger.jsonl'), ''.join(lines[:-1]))
    with self.assertRaisesRegex(ledger_lib.LedgerError, 'was shortened'):
      run_dir.read_ledger(self.run)
    os.remove(self.file('ledger.jsonl'))
    with self.assertRaisesRegex(ValueError, 'no saved state'):
      _train(self.run)
    files.write_text(self.file('ledger.jsonl'), text)
    with self.assertRaisesRegex(ValueError, 'no saved state'):
      _train(self.run)

  def test_a_repeated_round_that_comes_out_differently_gets_a_new_key(self):
    self.stop_in_round(4)
    old = self.secrets(self.run)
    self.assertEqual(self.charged(), 3)
    # The third round again, with other bits: as on another machine. It is run
    # twice, and what comes next is killed.
    with self.assertLogs('absl', 'WARNING') as logs:
      with self.assertRaises(_Killed):
        _train(
            self.run,
            num_rounds=4,
            save_every=1,
            context=_failing(4, context=_perturbing()),
        )
    self.assertIn('had another result', ''.join(logs.output))
    self.assertEqual(self.charged(), 4)
    # Both keys are new draws; they do not follow from the old ones.
    for name, key in self.secrets(self.run).items():
      self.assertNotEqual(keys.to_bytes(keys.derive(
          keys.from_bytes(old[name]), purpose='next round'
      )), key, name)

  def test_a_new_charge_beyond_the_target_is_refused(self):
    self.stop_in_round(4)
    with self.assertRaisesRegex(
        private_rounds.BudgetError, 'would exceed TARGET_EPSILON'
    ):
      _train(
          self.run,
          num_rounds=3,
          target_epsilon=_target(3),
          context=_perturbing(),
      )
    self.assertEqual(self.charged(), 3)

  def test_a_copied_folder_draws_a_new_key_and_a_renamed_one_does_not(self):
    # Three rounds are charged, two are saved.
    self.stop_in_round(4)
    copy, renamed = (
        os.path.join(self.root, name) for name in ('copy', 'renamed')
    )
    shutil.copytree(self.run, copy)
    with self.assertLogs('absl', 'WARNING') as logs:
      with self.assertRaises(_Killed):
        _train(copy, num_rounds=4, context=_failing(3))
    self.assertIn('is a copy or was restored', ''.join(logs.output))
    new, old = self.secrets(copy), self.secrets(self.run)
    for name, key in new.items():
      self.assertNotEqual(key, old[name], name)
    self.assertEqual(self.charged(copy), 4)
    # The copy keeps its keys from now on: its third round is not charged again.
    _train(copy, num_rounds=3)
    self.assertEqual(self.charged(copy), 4)
    stated = lambda run: pathlib.Path(run, 'privacy_report.txt').read_text()
    for text in (
        stated(copy), str(_report(copy))
    ):
      self.assertIn('is a copy or was restored', ' '.join(text.split()))
    os.rename(self.run, renamed)
    _train(renamed, num_rounds=3)
    self.assertNotIn('copy', stated(renamed))
    self.assertEqual(self.charged(renamed), 3)
    # Both were the same round.
    first, second = _weights(renamed), _weights(copy)
    self.assertTrue(np.any(first['head/kernel'] != second['head/kernel']))


_TRAFFIC = fed_avg.Traffic(download_bytes=100, upload_bytes=40)


def _flatten(**work: float | np.ndarray) -> dict[str, float]:
  names = (
      'audio_sec', 'delta_norm_sum', 'first_loss_sum', 'last_loss_sum',
      'loss_sum',
      'num_clients', 'num_left_out', 'num_non_finite', 'num_steps',
      'num_trained', 'num_utterances',
  )
  metrics = collections.OrderedDict(
      distributor=(),
      client_work={
          **{name: work.get(name, 0.0) for name in names},
          'gradient_norm_sum': work.get('gradient_norm_sum', np.zeros(2)),
      },
      aggregator=collections.OrderedDict(
          dp_query_metrics={'l2_norm_clip': 0.5, 'layer_clip': {'a/b': 0.25}},
          noise_norm=3.0,
          not_private=collections.OrderedDict(
              signal_norm=0.1, layer_norm={'a/b': 7.0},
              clipped_layer_norm={'a/b': 3.0},
          ),
      ),
      finalizer={'update_norm': 2.0},
  )
  del metrics['distributor']
  # Sorted by name, as a client's norms are.
  return federated.flatten(metrics, traffic=_TRAFFIC, layers=['z', 'b/c'])


class RoundMetricsTest(absltest.TestCase):

  def test_means_and_bytes_by_hand(self):
    metrics = _flatten(
        delta_norm_sum=6.0, first_loss_sum=20.0, last_loss_sum=10.0,
        loss_sum=90.0, num_clients=5.0, num_non_finite=2.0, num_trained=2.0,
        num_utterances=30.0, gradient_norm_sum=np.array([8.0, 1.0]),
    )
    expected = dict(
        # From three clients with a finite delta, one of them without data.
        delta_norm=2.0,
        loss_before=10.0,
        loss_after=5.0,
        train_loss=3.0,
        **{'layer_gradient_norm/b/c': 4.0, 'layer_gradient_norm/z': 0.5},
        download_bytes=500.0,
        upload_bytes=200.0,
    )
    for name, value in expected.items():
      self.assertEqual(metrics[f'not_private/{name}'], value, name)
    for name in metrics:
      self.assertNotIn('_sum', name)
    without_clients = _flatten()
    for name in (
        'delta_norm', 'loss_before', 'loss_after', 'train_loss',
        'layer_gradient_norm/z',
    ):
      self.assertTrue(math.isnan(without_clients[f'not_private/{name}']))

  def test_exact_metrics_are_named_not_private(self):
    metrics = _flatten(num_clients=1.0)
    released = {
        name for name in metrics if not name.startswith('not_private/')
    }
    self.assertEqual(
        released,
        {
            'aggregator/dp_query_metrics/l2_norm_clip',
            'aggregator/dp_query_metrics/layer_clip/a/b',
            'aggregator/noise_norm',
            'finalizer/update_norm',
        },
    )
    self.assertEqual(metrics['not_private/signal_norm'], 0.1)
    self.assertEqual(metrics['not_private/layer_norm/a/b'], 7.0)
