"""Augmentation of waveforms: speed, reverberation and noise.

  - Speed (Ko et al. 2015, https://doi.org/10.21437/Interspeech.2015-711): the
    utterance is resampled, so that tempo and pitch change together.
  - Reverberation: convolution with a generated impulse response, which is a
    direct sound and a tail of Gaussian noise that decays by 60 dB within a
    random time RT60. The utterance keeps its energy.
  - Noise: Gaussian with a random spectrum, at a random signal-to-noise ratio.

Only speed changes an utterance's length. All draws follow from one stateless
seed.

  B: batch size. N: samples.
"""

from collections.abc import Callable, Sequence
import fractions
import math

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import convolution
from tff_asr.features import log_mel
from tff_asr.features import resampling

_MIN_SPEED, _MAX_SPEED = 0.5, 2.0
_MAX_DENOMINATOR = 20
# Taps of the random filter that gives noise its spectrum.
_NUM_NOISE_TAPS = 32
_INT16_MIN, _INT16_MAX = -(2.0**15), 2.0**15 - 1

_Range = tuple[float, float]


def build(
    *,
    speeds: Sequence[float] = (0.9, 1.0, 1.1),
    reverb_prob: float = 0.5,
    rt60_sec: _Range = (0.1, 0.6),
    direct_to_reverb_db: _Range = (0.0, 15.0),
    noise_prob: float = 0.5,
    snr_db: _Range = (10.0, 30.0),
) -> Callable[
    [tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]
]:
  """Builds the augmentation.

  A range is its smallest and its largest value; draws are uniform in it.

  Args:
    speeds: Speeds in [0.5, 2], of which each utterance gets one at random;
      rounded to fractions with a denominator of at most 20.
    reverb_prob: Probability that an utterance gets reverberation.
    rt60_sec: Range of RT60 in seconds, above 0.
    direct_to_reverb_db: Range of the direct sound's energy over the tail's.
    noise_prob: Probability that an utterance gets noise.
    snr_db: Range of the signal's energy over the noise's.

  Returns:
    A function of waveforms int16 [B, N], padded with anything, num_samples
    int32 [B] and a seed int32 [2] to waveforms int16 [B, N'], padded with 0,
    and their num_samples. Draws differ by row. The same row, number of the row
    and seed give the same samples, whatever pads it.

  Raises:
    ValueError: An argument is out of its range.
  """
  fractions_of = speed_fractions(speeds)
  checks.in_range(0, 1, reverb_prob=reverb_prob, noise_prob=noise_prob)
  _check_ranges(
      rt60_sec=rt60_sec, direct_to_reverb_db=direct_to_reverb_db, snr_db=snr_db
  )
  checks.positive(rt60_sec=rt60_sec[0])

  def augment_one(
      row: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
      *,
      seed: tf.Tensor,
      size: tf.Tensor,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    waveform, num_samples, number = row
    seed = tf.random.fold_in(seed, number)
    speed_seed, reverb_seed, noise_seed = tf.unstack(tf.random.split(seed, 3))
    samples = _at_random_speed(
        tf.cast(waveform[:num_samples], tf.float32), speed_seed, fractions_of
    )
    samples = _sometimes(
        lambda seed: _reverberate(
            samples, seed, rt60_sec=rt60_sec, ratio_db=direct_to_reverb_db
        ),
        samples, reverb_seed, prob=reverb_prob,
    )
    reverberated = samples
    samples = _sometimes(
        lambda seed: _add_noise(reverberated, seed, snr_db=snr_db),
        samples, noise_seed, prob=noise_prob,
    )
    samples = _to_int16(samples)
    length = tf.size(samples)
    return tf.pad(samples, [[0, size - length]]), length

  @tf.autograph.experimental.do_not_convert
  def augment(
      waveforms: tf.Tensor, num_samples: tf.Tensor, seed: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    longest = resampling.num_samples(
        tf.shape(waveforms)[1], speed=min(fractions_of)
    )
    # Row by row: draws must not depend on padding.
    return tf.map_fn(
        lambda row: augment_one(row, seed=seed, size=longest),
        (waveforms, num_samples, tf.range(tf.size(num_samples))),
        fn_output_signature=(
            tf.TensorSpec([None], tf.int16), tf.TensorSpec([], tf.int32)
        ),
    )

  return augment


def _check_ranges(**ranges: _Range) -> None:
  """Raises ValueError unless each is a smallest and a largest finite value."""
  for name, (low, high) in ranges.items():
    checks.finite(**{name: low})
    checks.finite(**{name: high})
    if low > high:
      raise ValueError(
          f'{name} must be a smallest and a largest value, found {low:g} and '
          f'{high:g}.'
      )


def speed_fractions(speeds: Sequence[float]) -> list[fractions.Fraction]:
  """Rounds speeds to fractions with a denominator of at most 20.

  Raises:
    ValueError: There is none, or one is not in [0.5, 2].
  """
  if not speeds:
    raise ValueError('speeds must have at least one speed, found none.')
  checks.in_range(_MIN_SPEED, _MAX_SPEED, **{
      f'speeds[{i}]': speed for i, speed in enumerate(speeds)
  })
  return [
      fractions.Fraction(speed).limit_denominator(_MAX_DENOMINATOR)
      for speed in speeds
  ]


def at_speed(waveform: tf.Tensor, speed: fractions.Fraction) -> tf.Tensor:
  """Plays a waveform int16 [N] at a speed: int16 [N']."""
  return _to_int16(
      resampling.resample(tf.cast(waveform, tf.float32), speed=speed)
  )


def _to_int16(samples: tf.Tensor) -> tf.Tensor:
  """Rounds float32 [N], and clips what int16 cannot hold."""
  samples = tf.clip_by_value(tf.round(samples), _INT16_MIN, _INT16_MAX)
  return tf.cast(samples, tf.int16)


def _at_random_speed(
    samples: tf.Tensor, seed: tf.Tensor, speeds: Sequence[fractions.Fraction]
) -> tf.Tensor:
  """Resamples float32 [N] by one of the speeds."""
  chosen = tf.random.stateless_uniform(
      [], seed, maxval=len(speeds), dtype=tf.int32
  )
  return tf.switch_case(chosen, [
      lambda speed=speed: resampling.resample(samples, speed=speed)
      for speed in speeds
  ])


def _sometimes(
    change: Callable[[tf.Tensor], tf.Tensor],
    samples: tf.Tensor,
    seed: tf.Tensor,
    *,
    prob: float,
) -> tf.Tensor:
  """Returns `change` of a seed with a probability, or else the samples."""
  choice_seed, seed = tf.unstack(tf.random.split(seed, 2))
  is_changed = tf.random.stateless_uniform([], choice_seed) < prob
  return tf.cond(is_changed, lambda: change(seed), lambda: samples)


def _reverberate(
    samples: tf.Tensor,
    seed: tf.Tensor,
    *,
    rt60_sec: _Range,
    ratio_db: _Range,
) -> tf.Tensor:
  """Adds a random room's reverberation to float32 [N]; energy stays."""
  time_seed, ratio_seed, tail_seed = tf.unstack(tf.random.split(seed, 3))
  rt60 = _uniform(time_seed, rt60_sec)
  # As long as the longest RT60, at whose end a tail is 60 dB down.
  times = tf.range(1, log_mel.samples_of_seconds(rt60_sec[1]) + 1)
  seconds = tf.cast(times, tf.float32) / log_mel.SAMPLE_RATE_HZ
  tail = tf.random.stateless_normal(tf.shape(times), tail_seed)
  # 60 dB are a factor of 1,000 in amplitude.
  tail *= tf.pow(10.0, -3.0 * seconds / rt60)
  ratio = _uniform(ratio_seed, ratio_db)
  tail = _with_energy(tail, tf.pow(10.0, -ratio / 10.0))
  response = tf.concat([[1.0], tail], axis=0)
  return _with_energy(_convolve(samples, response), _energy(samples))


def _add_noise(
    samples: tf.Tensor, seed: tf.Tensor, *, snr_db: _Range
) -> tf.Tensor:
  """Adds noise of a random spectrum and level to float32 [N]."""
  ratio_seed, noise_seed, filter_seed = tf.unstack(tf.random.split(seed, 3))
  # Its first taps are the largest, so that some spectra are nearly flat.
  taps = tf.random.stateless_normal([_NUM_NOISE_TAPS], filter_seed)
  taps *= tf.exp(-tf.range(_NUM_NOISE_TAPS, dtype=tf.float32) / 8.0)
  white = tf.random.stateless_normal(
      [1, tf.size(samples) + _NUM_NOISE_TAPS - 1, 1], noise_seed
  )
  noise = convolution.convolve(white, taps[:, tf.newaxis, tf.newaxis], 1)
  noise = tf.reshape(noise, [-1])
  ratio = tf.pow(10.0, _uniform(ratio_seed, snr_db) / 10.0)
  return samples + _with_energy(noise, _energy(samples) / ratio)


def _convolve(samples: tf.Tensor, response: tf.Tensor) -> tf.Tensor:
  """The first N samples of a convolution: float32 [N]."""
  size = tf.size(samples)
  length = tf.cast(size + tf.size(response) - 1, tf.float64)
  # A power of two: TensorFlow's other FFTs take six times as long on a CPU.
  power = tf.math.ceil(tf.math.log(length) / math.log(2))
  length = tf.cast(tf.pow(tf.constant(2.0, tf.float64), power), tf.int32)
  spectra = [
      tf.signal.rfft(each, fft_length=[length]) for each in (samples, response)
  ]
  product = spectra[0] * spectra[1]
  return tf.signal.irfft(product, fft_length=[length])[:size]


def _energy(samples: tf.Tensor) -> tf.Tensor:
  return tf.reduce_sum(tf.square(samples))


def _with_energy(samples: tf.Tensor, energy: tf.Tensor) -> tf.Tensor:
  """Scales samples to an energy; zeros stay zeros."""
  return samples * tf.sqrt(tf.math.divide_no_nan(energy, _energy(samples)))


def _uniform(seed: tf.Tensor, limits: _Range) -> tf.Tensor:
  """A uniform draw, float32 []."""
  low, high = limits
  return low + (high - low) * tf.random.stateless_uniform([], seed)
