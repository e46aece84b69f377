"""Private pre-training in miniature: what noise, freezing, clip and batch do.

    python -m experiments.run --suite=pretraining

BEST-RQ on generated speech (`data_tools.synthetic_population`), after
https://arxiv.org/abs/2409.13953: a public warm start, and from it private
phases, each for several random seeds that all rows share. What decides is the
loss on voices outside the training data, and for a few rows the word error rate
after fine-tuning with CTC on transcribed speech of others. Steps, draws, noise,
freezing and accounting are the library's; the loop is here, because a program a
row would spend most of its time starting. Results are kept in a file as they
come, so it can be stopped and started again; the report is rewritten after
each seed. A seed takes some two minutes of one core, and one more to fine-tune.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import json
import math
import os
import time
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from data_tools import synthetic_population
from experiments import design
from experiments import report as report_lib
from tff_asr import checks
from tff_asr import files
from tff_asr.data import client_data
from tff_asr.data import cohorts
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.features import log_mel
from tff_asr.learning import central_step
from tff_asr.learning import dp_sgd
from tff_asr.learning import fed_avg
from tff_asr.learning import layer_freeze
from tff_asr.metrics import confidence
from tff_asr.models import best_rq
from tff_asr.models import conv
from tff_asr.models import ctc
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import quantizer
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import adam
from tff_asr.optimizers import schedules
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import clipping
from tff_asr.privacy import keys
from tff_asr.privacy import privacy_report
from tff_asr.privacy import queries
from tff_asr.programs import evaluation
from tff_asr.reports import tables
from tff_asr.text import tokenizer as tokenizer_lib

NAME = 'pretraining'
REPORT = 'docs/pretraining_miniature.md'
_RESULTS = 'results.json'
_SEEDS = 5

# The corpus: speakers, and utterances of each.
_SPEAKERS = {'public': 4, 'private': 3000, 'dev': 60, 'test': 1}
_UTTERANCES = {'public': 40, 'private': 2, 'dev': 1, 'test': 1}
_POPULATION = _SPEAKERS['private'] * _UTTERANCES['private']
_DELTA = 1e-5
_BATCH, _STEPS, _CLIP, _RATE = 32, 60, 1.0, 0.006
_WARM_STEPS, _WARM_BATCH = 100, 32
# Noise of ratio 1 (see `Row`) for the batch and model of most rows.
_RATIO = 1.0
_PHYSICAL = 32
_CUTOFF_HZ = 3400
_WARM_START, _NOTHING = 'warm start', 'no pre-training'

# Fine-tuning: speakers of another corpus, rows, and how many seeds.
_TUNING_SPEAKERS = {'public': 60, 'private': 1, 'dev': 1, 'test': 100}
_TUNING_UTTERANCES = {'public': 8, 'private': 1, 'dev': 1, 'test': 6}
_TUNING_STEPS, _TUNING_RATE, _TUNING_BATCH_SEC = 300, 0.003, 30.0
# Rows that are fine-tuned, and the rows that they are compared with.
_TUNED = {
    _NOTHING: None,
    _WARM_START: _NOTHING,
    'noiseless': _WARM_START,
    'noise 1': _WARM_START,
    'highest 80% frozen': 'noise 1',
}
_TUNED_SEEDS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """A way to train on from the warm start.

  Attributes:
    label: Unlike those of the other rows.
    noise: z; None: neither clipped nor noised.
    split: How the clip is divided over layers.
    batch_size: Expected.
    share: Share of the parameters that are frozen, by scores of the warm start.
    order: Which of them (`layer_freeze`).
    speech: 'private', 'public', or 'telephone': the private speech below
      3.4 kHz.
  """

  label: str
  noise: float | None
  split: str = 'dim'
  batch_size: int = _BATCH
  share: float = 0.0
  order: str = 'lowest'
  speech: str = 'private'


class _Speech(NamedTuple):
  """Features of utterances, float32 [T, F] each."""

  name: str
  features: list[np.ndarray]

  def batches(
      self, numbers: Sequence[int]
  ) -> Iterator[pipeline_lib.Batch]:
    """These utterances in physical batches, the shorter ones first."""
    order = sorted(numbers, key=lambda number: len(self.features[number]))
    for start in range(0, len(order), _PHYSICAL):
      chosen = order[start : start + _PHYSICAL]
      lengths = [len(self.features[number]) for number in chosen]
      padded = np.zeros(
          [len(chosen), lengths[-1], log_mel.NUM_MEL_BINS], np.float32
      )
      for place, number in enumerate(chosen):
        padded[place, : lengths[place]] = self.features[number]
      strings = lambda texts: tf.constant(texts, tf.string)
      count = len(chosen)
      yield pipeline_lib.Batch(
          client_id=strings([self.name] * count),
          example_weights=tf.ones([count]),
          feature_lengths=tf.constant(lengths),
          features=tf.constant(padded),
          label_lengths=tf.zeros([count], tf.int32),
          labels=tf.zeros([count, 0], tf.int32),
          seed=tf.zeros([2], tf.int32),
          transcript=strings([''] * count),
          utterance_id=strings([f'{number}' for number in chosen]),
      )


def build_model() -> best_rq.BestRqModel:
  """Gated convolutions over generated speech, 64 labels."""
  return best_rq.build(
      encoder=conv.build(num_blocks=2, dim=32, kernel_size=7),
      quantizer=quantizer.RandomProjectionQuantizer(
          num_codes=64, num_stacked=3
      ),
      start_prob=0.05,
      span_sec=0.06,
  )


def noise_of(
    ratio: float, *, num_parameters: int, batch_size: int = _BATCH
) -> float:
  """Returns z for a ratio of the norm of the noise on the mean to the clip."""
  return ratio * batch_size / math.sqrt(num_parameters)


def build_rows() -> list[Row]:
  """All rows; the first is the positive control."""
  count = weights_lib.num_parameters(build_model().specs)
  main = noise_of(_RATIO, num_parameters=count)
  frozen = lambda share, order: Row(
      label=f'{order} {share:.0%} frozen',
      noise=main,
      share=share,
      order=order,
  )
  return [
      Row(label='noiseless', noise=0.0),
      Row(label='public speech', noise=None, speech='public'),
      Row(label='unclipped', noise=None),
      *(
          Row(
              label=f'noise {ratio:g}',
              noise=noise_of(ratio, num_parameters=count),
          )
          for ratio in (0.25, _RATIO, 4.0, 16.0)
      ),
      *(frozen(share, 'lowest') for share in (0.5, 0.8, 0.95)),
      *(frozen(0.8, order) for order in ('random', 'highest')),
      Row(label='global clip', noise=main, split='global'),
      Row(label='telephone speech', noise=main, speech='telephone'),
      *(
          Row(label=f'batch {size}', noise=_at_epsilon(size), batch_size=size)
          for size in (8, 128)
      ),
  ]


def build_claims() -> list[design.Claim]:
  """Claims on two rows; weights are of held-out losses."""
  main = f'noise {_RATIO:g}'
  less = lambda text, row, other: design.Claim(text, {row: 1, other: -1}, -1)
  return [
      less(
          'Private speech helps more than training on with public speech.',
          'noiseless',
          'public speech',
      ),
      less('Noise 1 costs.', 'noiseless', main),
      *(
          less(
              f'Freezing the lowest {share} % helps at equal epsilon.',
              f'lowest {share}% frozen',
              main,
          )
          for share in (50, 80, 95)
      ),
      *(
          less(
              f'Freezing the lowest 80 % is ahead of the {order} 80 %.',
              'lowest 80% frozen',
              f'{order} 80% frozen',
          )
          for order in ('random', 'highest')
      ),
      less('Clipping by layer is ahead of one norm.', main, 'global clip'),
      less('Batches of 32 are ahead of 8 at one epsilon.', main, 'batch 8'),
      less('Batches of 128 are ahead of 32 at one epsilon.', 'batch 128', main),
      less(
          'Private speech of the same domain helps more than of another.',
          main,
          'telephone speech',
      ),
  ]


def _sampling(batch_size: int) -> accounting.Sampling:
  return accounting.Sampling(
      kind='poisson', cohort_size=batch_size, population=_POPULATION
  )


def epsilon_of(noise: float, batch_size: int) -> float:
  """Epsilon of a private phase with the utterance as the unit, by RDP."""
  if not noise:
    return math.inf
  group = accounting.RoundGroup(
      sampling=_sampling(batch_size), noise_multiplier=noise, count=_STEPS
  )
  return accounting.epsilon([group], delta=_DELTA)


class Tuning:
  """Fine-tuning with CTC, and the word errors of new speakers."""

  def __init__(self, data_dir: str, *, encoder: encoder_lib.Encoder):
    """Makes the corpus, or takes what is there."""
    synthetic_population.generate(
        data_dir,
        num_speakers=_TUNING_SPEAKERS,
        num_utterances=_TUNING_UTTERANCES,
        seed=2,
    )
    tokenizer = tokenizer_lib.for_language('en')
    self._model = ctc.build(encoder=encoder, tokenizer=tokenizer)
    self._pipeline = pipeline_lib.Pipeline(
        tokenizer=tokenizer,
        output_lengths=encoder.output_lengths,
        max_batch_sec=_TUNING_BATCH_SEC,
    )
    load = lambda part: client_data.load(os.path.join(data_dir, part))
    self._public = load('public')
    self._evaluator = evaluation.Evaluator(
        model=self._model, pipeline=self._pipeline, client_data=load('test')
    )

  def errors(
      self, encoder_weights: weights_lib.Weights | None, seed: int
  ) -> list[tuple[int, int]]:
    """Word errors and words of each test speaker after fine-tuning."""
    weights = self.trained(encoder_weights, seed)
    found = self._evaluator(weights).errors_by_client()
    return [(each.errors, each.words) for each in found.values()]

  def trained(
      self, encoder_weights: weights_lib.Weights | None, seed: int
  ) -> weights_lib.Weights:
    """Weights after fine-tuning.

    Args:
      encoder_weights: Weights of the encoder, and perhaps others; None: none
        are taken.
      seed: Seed of the head and of the order of the batches.
    """
    step = central_step.CentralStep(
        model=self._model, optimizer=_optimizer(_TUNING_RATE), seed=seed
    )
    state = step.initialize()
    if encoder_weights is not None:
      taken = {
          name: encoder_weights[name] for name in self._model.encoder.specs
      }
      state = state._replace(
          global_model_weights=weights_lib.updated(
              state.global_model_weights, taken
          )
      )
    rows = self._public.record_locations(
        np.arange(self._public.num_records)
    )
    batches = self._pipeline.training_batches(
        self._public.read_dataset(rows),
        seed=tf.constant([0, seed]),
    )
    for batch in batches.take(_TUNING_STEPS):
      state, _ = step.next(state, [batch])
    return state.global_model_weights


class Miniature:
  """The corpus in memory, and measurements on it."""

  def __init__(self, data_dir: str):
    """Makes the corpus, or takes what is there."""
    synthetic_population.generate(
        data_dir, num_speakers=_SPEAKERS, num_utterances=_UTTERANCES
    )
    read = functools.partial(_read, data_dir)
    self.speech = {
        'public': read('public'),
        'private': read('private'),
        'telephone': read('private', name='telephone'),
        'dev': read('dev'),
    }
    self.model = build_model()
    self.tuning = Tuning(
        os.path.join(data_dir, 'tuning'), encoder=self.model.encoder
    )
    self._starts = {}

    @tf.function(
        input_signature=[
            weights_lib.tensor_specs(self.model.specs),
            pipeline_lib.batch_spec(),
        ],
        autograph=False,
    )
    def losses(weights, batch):
      numbers = tf.strings.to_number(batch['utterance_id'], tf.int32)
      # Masks that never change.
      seeds = tf.stack([numbers, tf.zeros_like(numbers)], axis=1)
      masked = self.model.mask(
          batch['features'], batch['feature_lengths'], seeds
      )
      return self.model.masked_loss(weights, masked)

    self._losses = losses

  def loss(self, weights: weights_lib.Weights) -> float:
    """Mean over the dev utterances, in nats."""
    weights = weights_lib.to_tensors(weights)
    dev = self.speech['dev']
    found = [
        self._losses(weights, batch).numpy()
        for batch in dev.batches(range(len(dev.features)))
    ]
    return float(np.mean(np.concatenate(found)))

  def warm_start(
      self, seed: int
  ) -> tuple[weights_lib.Weights, dict[str, float]]:
    """Weights trained on public speech, and the layers' squared norms."""
    if seed not in self._starts:
      step = dp_sgd.DpSgd(
          model=self.model,
          optimizer=_optimizer(),
          batch_size=_WARM_BATCH,
          seed=seed,
          gradient_mode='per_batch',
      )
      squares = dict.fromkeys(self.model.specs, 0.0)

      def watch(metrics):
        for name, value in metrics['layer_squares'].items():
          squares[name] += float(value)

      weights = self._train(
          step,
          step.initialize(),
          speech='public',
          batch_size=_WARM_BATCH,
          steps=_WARM_STEPS,
          seed=seed,
          watch=watch,
      )
      self._starts = {seed: (weights, squares)}
    return self._starts[seed]

  def train(self, row: Row, seed: int) -> weights_lib.Weights:
    """Weights after a row's training."""
    weights, squares = self.warm_start(seed)
    build_query = None
    if row.noise is not None:
      build_query = functools.partial(
          queries.PerLayerClipSumQuery,
          clipping=clipping.Clipping(split=row.split),
          l2_norm_clip=_CLIP,
          noise_multiplier=row.noise,
      )
    step = dp_sgd.DpSgd(
        model=self.model,
        optimizer=_optimizer(),
        batch_size=row.batch_size,
        # Other masks than the warm start's.
        seed=1000 + seed,
        build_query=build_query,
        frozen=frozen_of(row, squares, self.model.specs, seed=seed),
        gradient_mode='per_batch' if build_query is None else 'per_example',
    )
    state = step.initialize()._replace(global_model_weights=weights)
    return self._train(
        step,
        state,
        speech=row.speech,
        batch_size=row.batch_size,
        steps=_STEPS,
        seed=1000 + seed,
        is_private=build_query is not None,
    )

  def _train(
      self,
      step: dp_sgd.DpSgd,
      state,
      *,
      speech: str,
      batch_size: int,
      steps: int,
      seed: int,
      is_private: bool = False,
      watch: Callable[..., None] = lambda metrics: None,
  ) -> weights_lib.Weights:
    """Takes steps on Poisson batches; keys follow from the seed."""
    source, key = self.speech[speech], keys.from_seed(seed)
    sampling = accounting.Sampling(
        kind='poisson',
        cohort_size=batch_size,
        population=len(source.features),
    )
    for number in range(steps):
      drawn = cohorts.draw_indices(sampling, key=key, round_num=number)
      if is_private:
        noise_key = keys.derive(key, purpose=f'noise of step {number}')
        state = fed_avg.set_noise_key(state, noise_key)
      state, metrics = step.next(state, source.batches(drawn))
      watch(metrics)
    return state.global_model_weights


@functools.cache
def _at_epsilon(batch_size: int) -> float:
  """z of a batch size at the epsilon of the main noise."""
  count = weights_lib.num_parameters(build_model().specs)
  main = noise_of(_RATIO, num_parameters=count)
  if batch_size == _BATCH:
    return main
  epsilon = epsilon_of(main, _BATCH)
  return calibration.noise_multiplier_for_epsilon(
      epsilon,
      sampling=_sampling(batch_size),
      rounds=_STEPS,
      delta=_DELTA,
      accountant='rdp',  # As `epsilon_of`.
  )


def frozen_of(
    row: Row,
    squares: dict[str, float],
    specs: weights_lib.Specs,
    *,
    seed: int,
) -> tuple[str, ...]:
  """Names of the tensors that a row freezes."""
  freeze = layer_freeze.LayerFreeze(
      share=row.share, order=row.order, seed=seed
  )
  return tuple(freeze.choose(squares, specs))


def _optimizer(rate: float = _RATE) -> tff.learning.optimizers.Optimizer:
  return schedules.scheduled(
      adam.build_adam(rate),
      schedule=schedules.warmup(schedules.constant(rate), rounds=10),
  )


def _read(data_dir: str, part: str, *, name: str | None = None) -> _Speech:
  """A part's features; of `telephone`, after a low-pass filter."""
  data = client_data.load(os.path.join(data_dir, part))
  rows = data.record_locations(np.arange(data.num_records))
  found = []
  for utterance in data.read_dataset(rows):
    waveform = utterance['waveform'].numpy()
    if name == 'telephone':
      waveform = _narrow(waveform)
    found.append(log_mel.log_mel_numpy(waveform))
  return _Speech(name or part, found)


def _narrow(waveform: np.ndarray) -> np.ndarray:
  """A waveform without frequencies above the cutoff, int16 [N]."""
  spectrum = np.fft.rfft(waveform)
  frequencies = np.fft.rfftfreq(len(waveform), 1 / log_mel.SAMPLE_RATE_HZ)
  spectrum[frequencies > _CUTOFF_HZ] = 0
  narrow = np.round(np.fft.irfft(spectrum, len(waveform)))
  return np.clip(narrow, -(2**15), 2**15 - 1).astype(np.int16)


def report(results: dict[str, dict], rows: Sequence[Row]) -> str:
  """The report, Markdown, of the results so far.

  Args:
    results: By seed: `losses` by row's label (and 'warm start'), and `errors`,
      of each test speaker word errors and words, by label.
    rows: All rows.
  """
  specs = build_model().specs
  losses = [found['losses'] for found in results.values()]
  tuned = [found['errors'] for found in results.values() if 'errors' in found]
  speakers, utterances = _TUNING_SPEAKERS, _TUNING_UTTERANCES
  intro = (
      'Which parts of private BEST-RQ pre-training help, on generated speech. '
      'This makes the speech and writes this page:',
      'BEST-RQ with 64 labels and spans of 60 ms over gated convolutions, '
      f'{weights_lib.num_parameters(specs):,} parameters; '
      f'{_SPEAKERS["public"]} public voices of {_UTTERANCES["public"]} '
      f'sentences, {_SPEAKERS["private"]:,} private ones of '
      f'{_UTTERANCES["private"]} (`data_tools/synthetic_population.py`); loss, '
      f'in nats, is that of {_SPEAKERS["dev"]} other voices. After a warm '
      f'start of {_WARM_STEPS} steps of {_WARM_BATCH}, each row takes '
      f'{_STEPS} steps of {_BATCH} expected utterances with C = {_CLIP:g}, by '
      f'layer with `dim`, and Adam at {_RATE:g}. Noise is the norm of the '
      f'noise on the mean over C before freezing, by default {_RATIO:g}. Rows '
      'of a seed share the warm start, '
      'and those of one batch size the batches; intervals are Student\'s over '
      'seeds of paired differences, not corrected for their number. Epsilon is '
      f'that of the run, at delta {_DELTA:g}, for an utterance. `noiseless` '
      '(clipped) is the positive control.',
      'Tensors are frozen whole, by [score](pretraining.md#layerfreeze); the '
      'largest of the 16 has 53 % of the parameters, so the lowest 80 % and '
      '95 % are the same tensors wherever their losses are. One model and one '
      'generator: rankings need not hold at full size.',
  )
  first, *others = map(report_lib.wrap, intro)
  return '\n\n'.join([
      '# Private pre-training in miniature',
      first,
      '    python -m experiments.run --suite=pretraining',
      *others,
      '## Claims',
      tables.markdown(_claim_table(losses)),
      '## Rows',
      tables.markdown(_loss_table(losses, rows)),
      '## Word error rates after fine-tuning',
      report_lib.wrap(
          f'{_TUNING_STEPS} steps of {_TUNING_BATCH_SEC:g} s with Adam at '
          f'{_TUNING_RATE:g}, of the encoder, too, on {speakers["public"]} '
          f'public voices of another corpus, of {utterances["public"]} '
          f'sentences; {speakers["test"]} more voices say '
          f'{utterances["test"]} others. Intervals are over speakers and '
          'seeds (of one seed, over speakers alone). The warm start is the '
          'positive control: where it does not help, word error rates rank '
          'nothing.'
      ),
      tables.markdown(_rate_table(tuned)),
  ]) + '\n'


def _loss_table(
    losses: Sequence[dict[str, float]], rows: Sequence[Row]
) -> tables.Table:
  """Held-out loss, noise and epsilon of each row."""
  cells = [[
      '', 'held-out loss', 'minus warm start (95 %)', 'seeds', 'z', 'epsilon',
  ]]
  for label in (_WARM_START, *(row.label for row in rows)):
    found = [each[label] for each in losses if label in each]
    if not found:
      cells.append([label, 'not run', '', '', '', ''])
      continue
    row = next((row for row in rows if row.label == label), None)
    private = row is not None and row.noise is not None
    cells.append([
        label,
        f'{np.mean(found):.3f}',
        _shown(_contrast({label: 1, _WARM_START: -1}, losses)) if row else '',
        str(len(found)),
        f'{row.noise:.3g}' if private else '',
        privacy_report.format_epsilon(epsilon_of(row.noise, row.batch_size))
        if private
        else '',
    ])
  return cells


def _claim_table(losses: Sequence[dict[str, float]]) -> tables.Table:
  """Claims about losses."""
  claims = [['claim', 'nats (95 %)']]
  for claim in build_claims():
    found = _contrast(claim.weights, losses)
    verdict = report_lib.verdict(found, claim)
    claims.append([
        claim.text, f'{verdict}: {_shown(found)}' if found else verdict
    ])
  return claims


def _rate_table(tuned: Sequence[dict[str, list]]) -> tables.Table:
  """Word error rates after fine-tuning, and their differences."""
  rates = [['', 'WER %', 'difference (95 %)', 'from', 'seeds']]
  for label, against in _TUNED.items():
    found = [_word_error_rate(each[label]) for each in tuned if label in each]
    if not found:
      rates.append([label, 'not run', '', '', ''])
      continue
    gap = against and _tuned_contrast({label: 1, against: -1}, tuned)
    rates.append([
        label,
        f'{100 * np.mean(found):.1f}',
        _shown(gap and confidence.Interval(*(100 * x for x in gap)), 1),
        against or '',
        str(len(found)),
    ])
  return rates


def _word_error_rate(errors: Sequence[Sequence[int]]) -> float:
  """Word error rate from the errors and words of each speaker."""
  wrong, words = np.sum(errors, axis=0)
  return float(wrong / words)


def _tuned_contrast(
    weights: dict[str, float],
    tuned: Sequence[dict[str, Sequence[Sequence[int]]]],
) -> confidence.Interval | None:
  """A sum of rows' word error rates over the seeds that have all, if any."""
  found = np.array([
      [np.multiply(weight, each[label]) for label, weight in weights.items()]
      for each in tuned
      if weights.keys() <= each.keys()
  ])  # Seeds, rows, speakers; errors and words, weighed.
  if not found.size:
    return None
  errors = found[..., 0].sum(axis=1)
  words = np.abs(found[0, 0, :, 1])
  rates = errors.sum(axis=1) / words.sum()
  return confidence.linear_contrast(
      errors.mean(axis=0).tolist(),
      words.tolist(),
      seed_variances=[
          (float(rates.var(ddof=1)) / len(rates), len(rates) - 1)
      ] if len(rates) > 1 else [],
  )


def _contrast(
    weights: dict[str, float], losses: Sequence[dict[str, float]]
) -> confidence.Interval | None:
  """A sum of rows' losses over the seeds that have all; None below two."""
  sums = [
      math.fsum(weight * found[label] for label, weight in weights.items())
      for found in losses
      if weights.keys() <= found.keys()
  ]
  if len(sums) < 2:
    return None
  return report_lib.paired(sums)


def _shown(found: confidence.Interval | None, digits: int = 3) -> str:
  return '' if found is None else report_lib.shown(found, digits)


def run(
    names: Optional[Sequence[str]],
    *,
    data_dir: str,
    runs_dir: str,
    report_path: str,
) -> None:
  """Makes the missing runs of some rows, and writes the report of all.

  Args:
    names: Labels of rows; none: only the report is written; None: all.
    data_dir: Where the shards are or go.
    runs_dir: Where results.json, the file of results, is or goes.
    report_path: The report's file.

  Raises:
    ValueError: A name is not a row's, or a folder does not exist.
  """
  rows = build_rows()
  labels = [row.label for row in rows]
  unknown = sorted(set(names or ()) - set(labels))
  if unknown:
    raise ValueError(
        f'unknown row {unknown[0]!r}: choose from {", ".join(labels)}.'
    )
  report_dir = os.path.dirname(os.path.abspath(report_path))
  checks.output_folders(data_dir=data_dir, runs_dir=runs_dir, report=report_dir)
  os.makedirs(runs_dir, exist_ok=True)
  os.makedirs(report_dir, exist_ok=True)
  path = os.path.join(runs_dir, _RESULTS)
  results = json.loads(files.read(path)) if os.path.exists(path) else {}
  miniature = None
  for seed in range(1, _SEEDS + 1):
    kept = results.setdefault(str(seed), {'losses': {}})
    losses = kept['losses']
    missing = [
        row
        for row in rows
        if (names is None or row.label in names)
        and (
            row.label not in losses
            or seed <= _TUNED_SEEDS
            and row.label in _TUNED
            and row.label not in kept.get('errors', {})
        )
    ]
    if missing:
      if miniature is None:
        miniature = Miniature(data_dir)
      weights, _ = miniature.warm_start(seed)
      losses[_WARM_START] = miniature.loss(weights)
      if seed <= _TUNED_SEEDS:
        errors = kept.setdefault('errors', {})
        for label, start in ((_NOTHING, None), (_WARM_START, weights)):
          if label not in errors:
            errors[label] = miniature.tuning.errors(start, seed)
      print(f'seed {seed}: warm start {losses["warm start"]:.3f}', flush=True)
    for row in missing:
      started = time.process_time()
      weights = miniature.train(row, seed)
      losses[row.label] = miniature.loss(weights)
      if row.label in _TUNED and seed <= _TUNED_SEEDS:
        kept['errors'][row.label] = miniature.tuning.errors(weights, seed)
      print(
          f'seed {seed}: {row.label} {losses[row.label]:.3f}, '
          f'{time.process_time() - started:.0f} s',
          flush=True,
      )
      files.write_json(path, results)
    files.write_text(report_path, report(results, rows))
