"""Tests of tff_asr.programs.count_release."""

import functools
import math
import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from scipy import stats
import tensorflow as tf

from tests import cases
from tests import fakes
from tff_asr.data import client_data
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import privacy_report
from tff_asr.privacy import queries
from tff_asr.privacy import strategies
from tff_asr.programs import count_release
from tff_asr.programs import public_data
from tff_asr.storage import model_file
from tff_asr.storage import run_dir

_SPOKEN = {'ann': 1, 'bob': 2, 'cai': 1}
_SIZE = 4000
# A search takes a second.
_NOISE_MULTIPLIER = functools.cache(calibration.noise_multiplier_for_epsilon)
_POISSON = accounting.Sampling(kind='poisson', cohort_size=10, population=1000)


def finished_run(folder: str, corpus: str, **changes) -> str:
  """A folder as a private run leaves it, as far as its ledger is concerned."""
  settings = dict(privacy_unit='speaker', sampling=_POISSON) | changes
  os.makedirs(folder)
  path = os.path.join(folder, run_dir.LEDGER)
  cost = accounting.RoundGroup(
      sampling=settings['sampling'],
      noise_multiplier=2.0,
      strategy=settings.get('strategy'),
  )
  with ledger_lib.create(
      path, privacy_unit=settings['privacy_unit']
  ) as ledger:
    for i in range(3):
      ledger.append(
          ledger_lib.Round(round_num=i, cost=cost, identity=64 * str(i))
      )
    head = ledger.head
  model_file.write(
      os.path.join(folder, run_dir.MODEL),
      {'w': np.zeros(2, np.float32)},
      tokens='',
      ledger=list(head),
  )
  public_data.write(
      folder,
      [public_data.source(client_data.load(corpus), is_private=True)],
  )
  return folder


def _counts(*clients: str) -> list[count_release.SpeakerCounts]:
  """Counts of each client; together in all elements."""
  return [
      (client, np.arange(i, _SIZE, 3), 1 + np.arange(i, _SIZE, 3) % 7)
      for i, client in enumerate(clients or _SPOKEN)
  ]


class CountReleaseTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.corpus = fakes.write_split(self.path('private'), _SPOKEN)
    self.run = finished_run(self.path('run'), self.corpus)
    self.enterContext(mock.patch.object(
        calibration, 'noise_multiplier_for_epsilon', _NOISE_MULTIPLIER
    ))

  def rounds(self) -> list[accounting.RoundGroup]:
    return run_dir.read_ledger(self.run).rounds

  def release(self, speakers=None, **changes) -> count_release.Release:
    settings = dict(
        corpus=self.corpus, public_corpora=[], num_elements=_SIZE, epsilon=2.0,
        delta=1e-5,
    )
    return count_release.release(
        self.run,
        _counts() if speakers is None else speakers,
        **settings | changes,
    )

  def test_the_ledger_is_charged_for_one_round_of_all_speakers(self):
    before = self.rounds()
    released = self.release()
    *others, own = self.rounds()
    self.assertEqual(others, before)
    self.assertEqual((own.sampling.kind, own.count), ('full', 1))
    self.assertEqual(own.sampling.population, len(_SPOKEN))
    self.assertEqual(own.noise_multiplier, released.stddev)
    alone = accounting.epsilon([own], delta=1e-5, accountant='pld')
    self.assertBetween(alone, 1.99, 2.0)
    # Run and counts compose.
    self.assertEqual(
        released.report.epsilon,
        privacy_report.PrivacyReport(
            rounds=(*before, own), delta=1e-5
        ).epsilon,
    )
    path = os.path.join(self.run, run_dir.LEDGER)
    ledger_lib.read(path, head=released.head)
    self.assertEqual(released.head.count, 4)

  def test_the_privacy_report_of_the_run_covers_the_counts(self):
    details = privacy_report.TrainingDetails(
        l2_norm_clip=0.5, public_inputs=('the dev set',)
    )
    before = privacy_report.of_ledger(
        run_dir.read_ledger(self.run), delta=1e-6, details=details
    )
    run_dir.write_privacy_report(self.run, before)
    # At the delta of the run, since none is given.
    released = self.release(delta=None)
    self.assertEqual(released.delta, 1e-6)
    after = run_dir.read_privacy_report(self.run)
    self.assertEqual(
        (after['rounds'], after['releases'], after['l2_norm_clip']),
        (4, {'counts': 1}, 0.5),
    )
    self.assertGreater(after['epsilon'], before.epsilon)
    self.assertEqual(released.report.details, details)

  def test_each_speaker_is_scaled_to_norm_1(self):
    query = queries.PerLayerClipSumQuery(
        tf.TensorSpec([5]), l2_norm_clip=1.0, noise_multiplier=1.0
    )
    state = query.initial_global_state()
    step = query.grid_step(state).numpy()
    sums = [
        count_release._clipped_sum(
            query, speakers, ['a', 'b'], num_elements=5
        )
        for speakers in (
            [('a', np.array([0, 3]), np.array([3, 4]))],
            [('b', np.array([3, 4]), np.array([2000, 1]))],
            [
                ('a', np.array([0, 3]), np.array([3, 4])),
                ('b', np.array([3, 4]), np.array([2000, 1])),
            ],
        )
    ]
    np.testing.assert_allclose(step * sums[0], [0.6, 0, 0, 0.8, 0], atol=1e-6)
    np.testing.assert_allclose(
        step * sums[1], [0, 0, 0, 1, 1 / 2000], atol=1e-6
    )
    np.testing.assert_array_equal(sums[2], sums[0] + sums[1])
    for each in sums[:2]:
      # Exactly: in whole steps of the grid.
      self.assertLessEqual(
          sum(int(value) ** 2 for value in each), round(1 / step) ** 2
      )

  def test_noise_has_the_deviation_that_is_charged(self):
    # A false alarm in one of 10,000 runs.
    clean = np.zeros(_SIZE)
    for _, indices, values in _counts():
      clean[indices] += values / np.linalg.norm(values)
    released = self.release()
    noise = (released.counts - clean) / released.stddev
    self.assertGreater(stats.kstest(noise, 'norm').pvalue, 1e-4)
    self.assertLess(stats.kstest(1.5 * noise, 'norm').pvalue, 1e-9)

  def test_each_call_draws_other_noise_and_is_charged(self):
    first, second = self.release(), self.release()
    stddev = np.std(first.counts - second.counts)
    self.assertBetween(
        stddev / (math.sqrt(2) * first.stddev), 0.9, 1.1
    )
    self.assertEqual(self.rounds()[-1].count, 2)

  def test_nothing_is_released_that_cannot_be_charged(self):
    with self.assertRaises(OSError), mock.patch.object(
        ledger_lib.Ledger, 'append', side_effect=OSError('disk full')
    ):
      self.release()

  def test_other_data_are_refused(self):
    other = fakes.write_split(self.path('other'), {'eve': 1})
    for message, changes in (
        ('does not have the clients that', dict(corpus=other)),
        ('3 speakers are private in', dict(public_corpora=[self.corpus])),
        ('comes twice', dict(speakers=_counts('ann', 'bob', 'ann'))),
        ('is not of the corpus', dict(speakers=_counts('eve'))),
        (
            'comes twice',
            dict(speakers=[('ann', np.array([1, 1]), np.array([1, 1]))]),
        ),
        ('epsilon must be positive', dict(epsilon=0.0)),
        ('delta must be positive', dict(delta=0.0)),
        ('at most 67,108,864', dict(num_elements=2**26 + 1)),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.release(**changes)
    self.assertEqual(sum(group.count for group in self.rounds()), 3)

  @parameterized.named_parameters(
      ('recordings', dict(privacy_unit='example'), r'single units \(example\)'),
      (
          'min_sep',
          dict(
              sampling=accounting.Sampling(
                  kind='min_sep', cohort_size=10, population=1000, min_sep=100
              ),
              strategy=strategies.Toeplitz(
                  output_scale=(2**29,), buf_decay=(2**29,)
              ),
          ),
          'REPLACE_SPECIAL',
      ),
  )
  def test_other_ledgers_are_refused(self, changes, message):
    self.run = finished_run(self.path('other_run'), self.corpus, **changes)
    with self.assertRaisesRegex(ValueError, message):
      self.release()
    self.assertEqual(sum(group.count for group in self.rounds()), 3)

  def test_a_run_that_goes_on_is_refused(self):
    os.remove(os.path.join(self.run, run_dir.MODEL))
    with self.assertRaisesRegex(ValueError, 'not the folder of a finished run'):
      self.release()
    lock = run_dir.RunLock(self.run)
    self.addCleanup(lock.release)
    with self.assertRaisesRegex(ValueError, 'is in use by process'):
      self.release()


if __name__ == '__main__':
  absltest.main()
