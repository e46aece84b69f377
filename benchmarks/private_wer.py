r"""Error of a private evaluation, against the exact word error rate.

    python -m benchmarks.private_wer --evaluation=runs/x/test.json

Takes people's exact counts from a file of `bin/evaluate.py`, sums the vectors
that people would send (`tff_asr/metrics/private_wer.py`), and draws the noise
of the sum many times, each time under a new key, as `bin/evaluate.py --private`
does once for everyone in one round. Smaller numbers of people are drawn from
the file's at random, once for each number.

  shift      what --max_words and the limit of 1 on a rate change, without noise
  noise      the command's forecast of the noise's 95 % error, before it starts
  error      95 % of draws were at most this far from the exact rate
  covered    the share of draws whose 95 % interval held the exact rate
  median     `error` of the rate that half of the people do not exceed
  covered    and how often its interval held it

The interval is of the noise, and not of the shift. The command refuses an
evaluation whose forecast is above 25 points.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Sequence
import json
from typing import NamedTuple

from absl import flags
import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.metrics import person_errors
from tff_asr.metrics import private_wer
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import keys
from tff_asr.privacy import queries
from tff_asr.programs import evaluation_rounds
from tff_asr.reports import tables


class Found(NamedTuple):
  """What many draws of the noise showed.

  Attributes:
    error: 95 % of the draws' word error rates are within this of the exact one.
    covered: Share of intervals that hold the exact word error rate.
    median_error: As `error`, of the median of people's rates.
    median_covered: As `covered`, of that median.
  """

  error: float
  covered: float
  median_error: float
  median_covered: float


def read_counts(path: str) -> np.ndarray:
  """Errors and words of the people of an evaluation, int64 [N, 2]."""
  with open(path, encoding='utf-8') as f:
    people = json.load(f)['speakers'].values()
  return np.array([
      [
          each['substitutions'] + each['deletions'] + each['insertions'],
          each['words'],
      ]
      for each in people
  ])


def measure(
    counts: np.ndarray,
    *,
    vectors: private_wer.PersonVectors,
    noise_multiplier: float,
    draws: int,
) -> Found:
  """Draws the noise on the sum of people's vectors many times.

  Args:
    counts: Errors and words by person, int64 [N, 2].
    vectors: How people are made vectors.
    noise_multiplier: Of the sum, whose sensitivity is 1.
    draws: Number of draws.
  """
  query = queries.PerLayerClipSumQuery(
      {'sum': tf.TensorSpec([vectors.size])},
      l2_norm_clip=1.0,
      noise_multiplier=noise_multiplier,
  )
  initial = query.initial_global_state()
  params = query.derive_sample_params(initial)

  @tf.function
  def add(total, errors_and_words):
    errors, words = tf.unstack(errors_and_words)
    vector = vectors.encode(
        person_errors.PersonErrors(errors, words, 0, 0)
    )
    return query.accumulate_record(params, total, {'sum': vector})

  total = tf.data.Dataset.from_tensor_slices(counts).reduce(
      query.initial_sample_state({'sum': tf.zeros([vectors.size])}), add
  )
  errors, words = counts.T
  exact = errors.sum() / words.sum()
  # As `private_wer`: people with few words have no rate, and 1 is the most.
  has_rate = words >= vectors.min_words
  median = np.median(np.minimum(errors[has_rate] / words[has_rate], 1))
  differences, covered = [], []
  holds = lambda interval, value: interval.low <= value <= interval.high
  for _ in range(draws):
    state = queries.set_noise_key(initial, keys.draw())
    noised, _, _ = query.get_noised_result(total, state)
    found = vectors.estimate(
        noised['sum'].numpy(), stddev=noise_multiplier, num_people=len(counts)
    )
    rate, half = found.word_error_rate, found.quantiles[0.5]
    covered.append([holds(rate, exact), holds(half, median)])
    differences.append([rate.estimate - exact, half.estimate - median])
  error, median_error = np.quantile(np.abs(differences), 0.95, axis=0)
  share, median_share = np.mean(covered, axis=0)
  return Found(error, share, median_error, median_share)


def shift(counts: np.ndarray, vectors: private_wer.PersonVectors) -> float:
  """Returns what limits change of the word error rate, without noise.

  Args:
    counts: Errors and words by person, int64 [N, 2].
    vectors: The limits.
  """
  errors, words = counts[counts[:, 1] >= vectors.min_words].T
  weights = np.minimum(words, vectors.max_words)
  limited = (np.minimum(errors / words, 1) * weights).sum() / weights.sum()
  return float(limited - counts[:, 0].sum() / counts[:, 1].sum())


def table(
    counts: np.ndarray,
    *,
    numbers: Sequence[int],
    epsilons: Sequence[float],
    delta: float,
    vectors: private_wer.PersonVectors,
    draws: int,
) -> tables.Table:
  """Rows by number of people and epsilon; rates in points.

  Raises:
    ValueError: There are fewer people than in a row.
  """
  if max(numbers) > len(counts):
    raise ValueError(
        f'the evaluation has {len(counts):,} people: set --people to at most '
        'that many.'
    )
  generator = np.random.default_rng(1)
  cells = [[
      'people', 'epsilon', 'exact WER %', 'shift', 'noise', 'error', 'covered',
      'median', 'covered',
  ]]
  samples = {
      number: generator.permutation(counts)[:number] for number in numbers
  }
  for epsilon in epsilons:
    noise_multiplier = calibration.noise_multiplier_for_epsilon(
        epsilon,
        sampling=accounting.Sampling(
            kind='full', cohort_size=max(numbers), population=max(numbers)
        ),
        rounds=1,
        delta=delta,
        accountant='pld',
    )
    for number, people in samples.items():
      half_width = vectors.half_width(
          noise_multiplier=noise_multiplier, num_people=number
      )
      exact = people[:, 0].sum() / people[:, 1].sum()
      row = [
          f'{number:,}', f'{epsilon:g}', _points(exact),
          _points(shift(people, vectors)), _points(half_width),
      ]
      if half_width > evaluation_rounds.MAX_HALF_WIDTH:
        cells.append([*row, 'refused', '', '', ''])
        continue
      found = measure(
          people,
          vectors=vectors,
          noise_multiplier=noise_multiplier,
          draws=draws,
      )
      cells.append([
          *row,
          _points(found.error),
          f'{100 * found.covered:.0f} %',
          _points(found.median_error),
          f'{100 * found.median_covered:.0f} %',
      ])
  return cells


def _points(rate: float) -> str:
  """A rate in points, to hundredths: large populations have small errors."""
  return f'{100 * rate:.2f}'


def main(_) -> None:
  if flags.FLAGS.evaluation is None:
    raise ValueError('--evaluation=FILE of bin/evaluate.py is required.')
  checks.positive(delta=flags.FLAGS.delta)
  print(tables.markdown(table(
      read_counts(flags.FLAGS.evaluation),
      numbers=[int(each) for each in flags.FLAGS.people],
      epsilons=[float(each) for each in flags.FLAGS.epsilons],
      delta=flags.FLAGS.delta,
      vectors=private_wer.PersonVectors(max_words=flags.FLAGS.max_words),
      draws=flags.FLAGS.draws,
  )))


if __name__ == '__main__':
  # Tests import this module beside others with flags of these names.
  flags.DEFINE_string(
      'evaluation', None, 'File of bin/evaluate.py, with the people of a part.'
  )
  flags.DEFINE_list(
      'people', ['500', '1000', '12000'], 'Numbers of people.'
  )
  flags.DEFINE_list('epsilons', ['0.1', '0.5', '1'], 'Epsilons.')
  flags.DEFINE_float('delta', 1e-5, 'Delta.')
  flags.DEFINE_integer(
      'max_words', 17, 'Words for which a person counts.', lower_bound=1
  )
  flags.DEFINE_integer('draws', 200, 'Draws a row.', lower_bound=2)
  launch.run(main)
