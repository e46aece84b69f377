"""Clipping by layer without word error rates: how noise changes a step.

Does clipping by layer help, when, and why? Word error rates answer slowly: a
run gives one number. Here a model is fixed, private clients train from it, and
the effect of their clipped and noised mean on the server's step is measured for
each way to divide C, at several noises, by models of several depths and widths
and at several states of their training.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import json
import os
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments import design
from experiments import jobs
from experiments import population
from experiments import report as report_lib
from tff_asr import checks
from tff_asr import files
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.learning import client_update
from tff_asr.metrics import confidence
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import adam
from tff_asr.optimizers import lamb
from tff_asr.privacy import clipping
from tff_asr.privacy import grid_clipper
from tff_asr.recognition import model_spec
from tff_asr.reports import plots
from tff_asr.reports import tables
from tff_asr.storage import run_dir

REPORT = 'docs/layer_clipping.md'
_COMMAND = 'python -m experiments.run --suite=layer_clipping'
_COHORT_SIZE = 100
_NUM_ROUNDS = 5
# Disjoint clients each, with noise of their own: how far results differ.
_NUM_REPLICATES = 4
_LEARNING_RATE, _MAX_GRAD_NORM = 0.2, 1.0
# C over the median norm of the clients' deltas.
_CLIPS = (1 / 64, 1 / 8, 1.0)
_MAIN_CLIP = 1 / 8
# (noise norm) / C on the mean: sqrt(D) z / S. The paper's are .05 and .16.
_NOISES = (0.05, 0.16, 0.63, 2.5)
_MAIN_NOISE = 0.63
_SPLITS = ('global', 'uniform', 'dim')
# LAMB's epsilon over C / sqrt(D), the size of an element of a clipped mean.
_LARGE_EPSILON = 100.0
_MAIN_STEP = 'lamb'
_STEPS = ('mean', _MAIN_STEP, 'lamb, large epsilon', 'adam')
# Below this share of the whole mean, a layer has no signal to speak of: such as
# a bias that a norm removes again.
_LEAST_SHARE = 1e-5


class State(NamedTuple):
  """A model at some point of its training.

  Attributes:
    name: Name of the state.
    recipe: Recipe of the run that trained the model.
    is_start: Whether its initial weights are taken, not the trained ones.
    seed: Seed of the run; None: the recipe's only one.
    num_steps: Local steps of a client.
  """

  name: str
  recipe: design.Recipe
  is_start: bool = False
  seed: Optional[int] = None
  num_steps: int = 1


def _transformer(num_blocks: int, dim: int) -> design.Recipe:
  """A transformer trained on the public speakers, as the seed model is."""
  settings = dict(NUM_BLOCKS=num_blocks, DIM=dim, MLP_DIM=4 * dim, NUM_HEADS=4)
  return population.SEED.but(
      f'seed_transformer_{num_blocks}_{dim}',
      {'LEARNING_RATE': 0.001},
      model=design.Model(
          gin_files=('gin/models/transformer.gin',), settings=settings
      ),
  )


def _conv(num_blocks: int, dim: int) -> design.Recipe:
  """Convolutions of another size, trained as the seed model is."""
  settings = {'NUM_BLOCKS': num_blocks, 'DIM': dim}
  return population.SEED.but(
      f'seed_conv_{num_blocks}_{dim}', model=design.Model(settings=settings)
  )


_SHORT = population.SEED.but(
    'seed_100', {'NUM_STEPS': 100, 'EVALUATE_EVERY': 100, 'DECAY_START': 100}
)

STATES = (
    State('conv 4 x 96, untrained', population.SEED, is_start=True),
    State('conv 4 x 96, 100 steps', _SHORT),
    State('conv 4 x 96, seed', population.SEED),
    State('conv 4 x 96, seed, 2 local steps', population.SEED, num_steps=2),
    State('conv 4 x 96, after 20 rounds', population.TWIN, seed=1),
    State('conv 12 x 96', _conv(12, 96)),
    State('conv 36 x 96', _conv(36, 96)),
    *(
        State(f'transformer {depth} x {dim}', _transformer(depth, dim))
        for depth, dim in ((3, 96), (12, 48), (12, 96), (12, 192), (36, 96))
    ),
)


class Setting(NamedTuple):
  """How deltas are clipped: C over their median norm, and its division."""

  clip: float
  split: str


_SETTINGS = [Setting(clip, split) for clip in _CLIPS for split in _SPLITS]


def _cases() -> Iterator[tuple[float, float, str]]:
  """Clip, noise and optimizer of a measurement: one varies at a time."""
  for clip in _CLIPS:
    yield clip, _MAIN_NOISE, _MAIN_STEP
  for noise in _NOISES:
    if noise != _MAIN_NOISE:
      yield _MAIN_CLIP, noise, _MAIN_STEP
  for step in _STEPS:
    if step != _MAIN_STEP:
      yield _MAIN_CLIP, _MAIN_NOISE, step


class Cohort(NamedTuple):
  """What the clients of a round give.

  D: elements of an update.

  Attributes:
    mean: Mean of the deltas as they are, float32 [D].
    clipped: Means of the clipped ones by setting, float32 [D] each.
    shares: Share of clients with a clipped layer, and share of clipped layers
      over all clients, by setting, float32 [2].
  """

  mean: np.ndarray
  clipped: Mapping[Setting, np.ndarray]
  shares: Mapping[Setting, np.ndarray]


def measure(
    *,
    model: ctc.CtcModel,
    weights: weights_lib.Weights,
    deltas: Callable[[], Iterator[weights_lib.Weights]],
    num_replicates: int = _NUM_REPLICATES,
    num_rounds: int = _NUM_ROUNDS,
    cohort_size: int = _COHORT_SIZE,
) -> dict[str, Any]:
  """Measures how clipping and noise change the server's step.

  The clean mean is the mean of a replicate's deltas, without clipping. A step
  is the server optimizer's after `num_rounds` rounds from the same weights.

  Args:
    model: The model.
    weights: Its weights, by name.
    deltas: Starts the clients' deltas; the first num_replicates * num_rounds *
      cohort_size are used; also to find their median norm.
    num_replicates: Repetitions, each with other clients and other noise.
    num_rounds: Rounds a replicate.
    cohort_size: Clients a round.

  Returns:
    The model's `num_elements`, `num_layers` and `median_norm`; and `rows`, one
    for each replicate, case (`_cases`) and split:
      clients_clipped, layers_clipped: Shares.
      signal: Norm of the clipped mean over C.
      bias: Cosine of the clipped mean, before noise, with the clean mean.
      gain: How far the optimizer's step goes along the clean mean (their inner
        product over the step's norm), over how far the step from means that are
        neither clipped nor noised goes: the share of the first-order fall of
        the loss that is left, at equal length of the step.
      cosine: Cosine of its step with that one.
      noise_over_signal: By layer, norm of the noise over that of the clipped
        mean: of the worst layer, the median one and the best.
  """
  specs = weights_lib.tensor_specs(model.specs)
  sizes = [spec.shape.num_elements() for spec in tf.nest.flatten(specs)]
  num_elements = sum(sizes)
  source = deltas()
  norms = [
      float(tf.linalg.global_norm(tf.nest.flatten(next(source))))
      for _ in range(cohort_size)
  ]
  median = float(np.median(norms))
  begin, add = _adder(specs, median)
  # Size of an element of a delta of the median norm.
  element = median / np.sqrt(num_elements)
  steppers = {
      (clip, name): _stepper(
          name, weights, epsilon=_LARGE_EPSILON * clip * element
      )
      for clip, _, name in _cases()
  }
  rng = np.random.default_rng(1)
  source, rows = deltas(), []
  for replicate in range(num_replicates):
    rounds = [
        _cohort(source, begin, add, cohort_size) for _ in range(num_rounds)
    ]
    clean = np.mean([each.mean for each in rounds], axis=0)
    for clip, noise, name in _cases():
      step, stddev = steppers[clip, name], noise * clip * element
      # As small as clipped means: epsilon is no smaller with them.
      reference = step([clip * each.mean for each in rounds])
      for split in _SPLITS:
        setting = Setting(clip, split)
        clipped = [each.clipped[setting] for each in rounds]
        found = step([
            mean + stddev * rng.standard_normal(num_elements, np.float32)
            for mean in clipped
        ])
        clients, layers = np.mean([e.shares[setting] for e in rounds], axis=0)
        rows.append(dict(
            replicate=replicate,
            clip=clip,
            split=split,
            noise=noise,
            step=name,
            clients_clipped=float(clients),
            layers_clipped=float(layers),
            gain=_cosine(found, clean) / _cosine(reference, clean),
            cosine=_cosine(found, reference),
            **_measure_signal(
                clipped, clean, sizes=sizes, stddev=stddev, norm=clip * median
            ),
        ))
  return dict(
      num_elements=num_elements,
      num_layers=len(sizes),
      median_norm=median,
      rows=rows,
  )


def _measure_signal(
    clipped: Sequence[np.ndarray],
    clean: np.ndarray,
    *,
    sizes: Sequence[int],
    stddev: float,
    norm: float,
) -> dict[str, float | list[float]]:
  """Returns `signal`, `bias` and `noise_over_signal` of `measure`.

  Args:
    clipped: The clipped mean of each round, without noise.
    clean: The mean of all deltas, not clipped.
    sizes: Number of elements of each layer.
    stddev: Standard deviation of the noise on an element.
    norm: C.
  """
  mean = np.mean(clipped, axis=0)
  norms = _layer_norms(mean, sizes)
  has_signal = norms > _LEAST_SHARE * _norm(mean)
  ratios = stddev * np.sqrt(sizes)[has_signal] / norms[has_signal]
  return dict(
      signal=float(np.mean([_norm(each) for each in clipped]) / norm),
      bias=_cosine(mean, clean),
      noise_over_signal=np.quantile(ratios, (1, 0.5, 0)).tolist(),
  )


def _adder(
    specs: Any, median: float
) -> tuple[Callable[[], Any], Callable[..., Any]]:
  """Returns what begins sums by setting, and what adds a clipped delta."""
  layers = {
      split: clipping.Clipping(split=split).divide(specs) for split in _SPLITS
  }

  @tf.function(autograph=False)
  def add(sums, counts, delta):
    tensors = tf.nest.flatten(delta)
    squares = [grid_clipper.squared_norm(tensor) for tensor in tensors]
    new_sums, new_counts = [tf.nest.map_structure(tf.add, sums[0], delta)], []
    for setting, total, count in zip(_SETTINGS, sums[1:], counts, strict=True):
      clip = tf.constant(setting.clip * median, tf.float64)
      factors = clipping.factors(
          squares,
          layers=layers[setting.split],
          layer_clips=[
              None if layer.share is None else layer.share * clip
              for layer in layers[setting.split]
          ],
          clip=clip,
          rule='clip',
      )
      kept = tf.nest.pack_sequence_as(
          delta,
          [t * tf.cast(f, tf.float32) for t, f in zip(tensors, factors)],
      )
      new_sums.append(tf.nest.map_structure(tf.add, total, kept))
      changed = tf.cast(tf.stack(factors) < 1, tf.float32)
      new_counts.append(
          count + tf.stack([tf.reduce_max(changed), tf.reduce_mean(changed)])
      )
    return new_sums, new_counts

  def begin():
    zeros = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)
    return [zeros] * (1 + len(_SETTINGS)), [tf.zeros([2])] * len(_SETTINGS)

  return begin, add


def _cohort(
    source: Iterator[Any],
    begin: Callable[[], Any],
    add: Callable[..., Any],
    cohort_size: int,
) -> Cohort:
  """The means of a cohort's deltas."""
  sums, counts = begin()
  for _ in range(cohort_size):
    sums, counts = add(sums, counts, next(source))
  mean, *clipped = [_flat(total) / cohort_size for total in sums]
  return Cohort(
      mean=mean,
      clipped=dict(zip(_SETTINGS, clipped)),
      shares={
          setting: count.numpy() / cohort_size
          for setting, count in zip(_SETTINGS, counts)
      },
  )


def _stepper(
    name: str, weights: weights_lib.Weights, *, epsilon: float
) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
  """From means, float32 [D], to the last of an optimizer's steps with them.

  All from the same weights. `epsilon` is LAMB's large epsilon.
  """
  if name == 'mean':
    return lambda means: means[-1]
  optimizer = {
      'lamb': lambda: lamb.build_lamb(1.0),
      'lamb, large epsilon': lambda: lamb.build_lamb(1.0, epsilon=epsilon),
      'adam': lambda: adam.build_adam(1.0),
  }[name]()
  specs = tf.nest.map_structure(
      lambda value: tf.TensorSpec(value.shape, value.dtype), weights
  )

  @tf.function(autograph=False)
  def move(state, mean):
    state, moved = optimizer.next(state, weights, _nest(mean, weights))
    return state, tf.nest.map_structure(tf.subtract, weights, moved)

  def step(means: Sequence[np.ndarray]) -> np.ndarray:
    state = tf.nest.map_structure(
        tf.convert_to_tensor, optimizer.initialize(specs)
    )
    for mean in means:
      state, moved = move(state, tf.constant(mean, tf.float32))
    return _flat(moved)

  return step


def _flat(nest: Any) -> np.ndarray:
  return np.concatenate([np.ravel(part) for part in tf.nest.flatten(nest)])


def _nest(flat: np.ndarray, like: Any) -> Any:
  """The reverse of `_flat`."""
  parts, start = [], 0
  for part in tf.nest.flatten(like):
    size = part.shape.num_elements()
    parts.append(tf.reshape(flat[start : start + size], part.shape))
    start += size
  return tf.nest.pack_sequence_as(like, parts)


def _norm(vector: np.ndarray) -> float:
  return float(np.linalg.norm(vector.astype(np.float64)))


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
  """Cosine of two vectors; 0 if one is zeros."""
  product = _norm(a) * _norm(b)
  inner = float(np.dot(a.astype(np.float64), b.astype(np.float64)))
  return inner / product if product else 0.0


def _layer_norms(mean: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
  """Norms of the tensors of a flat update."""
  ends = np.cumsum(sizes)
  return np.array([
      _norm(mean[end - size : end]) for end, size in zip(ends, sizes)
  ])


def _deltas(
    model: ctc.CtcModel,
    pipeline: pipeline_lib.Pipeline,
    weights: weights_lib.Weights,
    *,
    data: client_data_lib.SpeechClientData,
    num_steps: int,
) -> Iterator[weights_lib.Weights]:
  """Deltas of local SGD from the same weights, of clients in a fixed order."""
  optimizer = tff.learning.optimizers.build_sgdm(_LEARNING_RATE)
  pipeline = dataclasses.replace(pipeline, read=data.read)
  specs = weights_lib.tensor_specs(model.specs)

  @tf.function(
      input_signature=[specs, records.LOCATION_SPECS], autograph=False
  )
  def train(weights, rows):
    # As a client's loop does it; a dataset of batches would take longer to make
    # than the step itself.
    client = pipeline.open_client(
        pipeline.with_lengths(tf.data.Dataset.from_tensor_slices(rows)),
        seed=tf.constant([1, 2]),
        num_epochs=num_steps,
    )
    chunk = pipeline.pack(
        pipeline.read_chunk(client, tf.constant(0)),
        seed=tf.random.fold_in(client.seed, 0),
    )
    state = tf.nest.map_structure(
        tf.convert_to_tensor, optimizer.initialize(specs)
    )
    trained = weights
    for number in range(num_steps):
      batch = pipeline.slice_batch(
          chunk, number % pipeline_lib.num_batches(chunk)
      )
      state, trained, _ = client_update.step(
          model, optimizer, state, trained, batch, max_grad_norm=_MAX_GRAD_NORM
      )
    return tf.nest.map_structure(tf.subtract, weights, trained)

  order = np.random.default_rng(1).permutation(data.client_ids)
  for client in data.locate_clients(order):
    yield train(weights, records.locations_of(client))


def _run(state: State) -> design.Run:
  return design.Run(state.recipe, state.seed)


def _measured_path(folders: jobs.Folders, state: State) -> str:
  name = state.name.replace(', ', '_').replace(' ', '_')
  return os.path.join(folders.runs_dir, 'layer_clipping', f'{name}.json')


def _read_model(
    folders: jobs.Folders, state: State
) -> tuple[ctc.CtcModel, Any, weights_lib.Weights]:
  """Model, pipeline and weights of a state; its run must be trained."""
  path = folders.path(_run(state))
  model, pipeline = model_spec.read(path)
  if state.is_start:
    return model, pipeline, model.initialize(tf.constant([1, 0]))
  weights = run_dir.read_model(
      path, model=model, tokens=pipeline.tokenizer.characters
  )
  return model, pipeline, weights_lib.to_tensors(weights)


def _train(states: Sequence[State], *, folders: jobs.Folders, num_at_once: int):
  """Trains the models of states, and first those that they start from."""
  runs = [_run(state) for state in states]
  while todo := jobs.untrained(runs, folders=folders):
    print(f'training {", ".join(job.name for job in todo)}', flush=True)
    failed = jobs.run_all(todo, folders=folders, num_at_once=num_at_once)
    if failed:
      name = min(failed)
      raise ValueError(f'{name} failed: see {folders.log(name)}.')


def run(
    names: Optional[Sequence[str]],
    *,
    folders: jobs.Folders,
    report: str,
    num_at_once: int,
) -> None:
  """Makes the missing measurements of states; writes the report of all.

  Args:
    names: Names of states; none: only the report is written; None: all.
    folders: The suite population's.
    report: The report's file.
    num_at_once: Models trained at a time.

  Raises:
    ValueError: A name is not a state's, a folder does not exist, nothing is
      measured, or a model could not be trained.
  """
  states = {state.name: state for state in STATES}
  names = list(states) if names is None else names
  unknown = [name for name in names if name not in states]
  if unknown:
    raise ValueError(
        f'unknown state {unknown[0]!r}: choose from {"; ".join(states)}.'
    )
  report_dir = os.path.dirname(os.path.abspath(report))
  checks.output_folders(
      data_dir=folders.data_dir, runs_dir=folders.runs_dir, report=report_dir
  )
  todo = [
      states[name]
      for name in names
      if not os.path.exists(_measured_path(folders, states[name]))
  ]
  if todo and not os.path.isdir(folders.shards('test')):
    jobs.make_shards(None, folders=folders)
  _train(todo, folders=folders, num_at_once=num_at_once)
  for state in todo:
    model, pipeline, weights = _read_model(folders, state)
    data = client_data_lib.load(folders.shards('private'))
    found = measure(
        model=model,
        weights=weights,
        deltas=lambda: _deltas(
            model, pipeline, weights, data=data, num_steps=state.num_steps
        ),
    )
    path = _measured_path(folders, state)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    files.write_text(path, json.dumps(found))
    print(f'measured {state.name}', flush=True)
  measured = {}
  for state in STATES:
    path = _measured_path(folders, state)
    if os.path.exists(path):
      measured[state.name] = json.loads(files.read(path))
  if not measured:
    raise ValueError(f'{folders.runs_dir} holds nothing measured to report.')
  os.makedirs(report_dir, exist_ok=True)
  write(measured, path=report)
  print(f'{report} is written.')


_INTRODUCTION = f"""\
# What clipping and noise leave of the server's step

Does clipping by layer help, when, and why? This measures it without training:

    {_COMMAND}"""
_METHOD = """\
{clients:,} private clients of the [generated corpus](population.md) train from
fixed weights, one local step each unless stated otherwise. Their deltas are
clipped to C (an eighth of their median norm unless stated otherwise; however C
is divided, the guarantee is the same) and averaged over cohorts of {cohort}.
Noise is stated as its norm on the mean over C; the paper's is .05 and .16.
*Gain* is how far the last of {rounds} steps of the server's optimizer goes
along the *clean* mean (no clips, no noise), over how far clean means take it:
the share of the first-order fall of the loss that is left at equal length.
Tables list it for `global` / `uniform` / `dim`, as the mean of {replicates}
replicates; + or -: `dim` is ahead of or behind `global`, by Student's 95 %
interval of paired differences."""


def write(measured: Mapping[str, Mapping[str, Any]], *, path: str) -> None:
  """Writes the report and its plot.

  Args:
    measured: Names of states to what `measure` returns.
    path: The report's file, in a folder that exists.
  """
  plots_dir = os.path.join(os.path.dirname(os.path.abspath(path)), 'results')
  os.makedirs(plots_dir, exist_ok=True)
  _save_plot(measured, os.path.join(plots_dir, 'layer_clipping.png'))
  missing = {state.name for state in STATES} - measured.keys()
  sections = [
      _INTRODUCTION,
      report_lib.wrap(_METHOD.format(
          clients=_NUM_REPLICATES * _NUM_ROUNDS * _COHORT_SIZE,
          cohort=_COHORT_SIZE,
          replicates=_NUM_REPLICATES,
          rounds=_NUM_ROUNDS,
      )),
      "## Gain of LAMB's step",
      report_lib.wrap(
          f'By its interval, of {len(measured)} states at noise '
          f'{", ".join(f"{each:g}" for each in _NOISES)}, `dim` is '
          f'{_verdicts(measured)}:'
      ),
      tables.markdown(_gains(
          measured, {f'{each:g}': {'noise': each} for each in _NOISES}
      )),
      report_lib.wrap(_uncertainty(measured)),
      '![Gain by noise](results/layer_clipping.png)',
      '## By optimizer and by clip',
      report_lib.wrap(
          'At noise .63. *Mean* is the step of SGD without momentum. The large '
          'epsilon of LAMB is 100 C / sqrt(D).'
      ),
      tables.markdown(_gains(measured, {
          **{each: {'step': each} for each in _STEPS if each != _MAIN_STEP},
          **{
              f'lamb, C = {each:.3g} median norm': {'clip': each}
              for each in _CLIPS
              if each != _MAIN_CLIP
          },
      })),
      '## Why',
      report_lib.wrap(
          'LAMB scales the step of each layer separately, so a layer that is '
          'mostly noise moves as far as one that is mostly signal. At noise '
          '.63, the least and the most over the models:'
      ),
      tables.markdown(_ranges(measured)),
      report_lib.wrap(' '.join(
          [_sizes(measured)]
          + [f'{len(missing)} more states are not measured.'] * bool(missing)
      )),
  ]
  files.write_text(path, '\n\n'.join(sections) + '\n')


def _save_plot(
    measured: Mapping[str, Mapping[str, Any]], path: str
) -> None:
  """Draws by noise how much more clips by layer leave of LAMB's step."""
  gaps = lambda found, noise: np.subtract(
      _select(found, 'gain', 'dim', noise=noise),
      _select(found, 'gain', 'global', noise=noise),
  )
  low, high = _NOISES[1], _NOISES[-1]
  ahead, behind = (
      [_sign(found, 'global', noise) for found in measured.values()].count(sign)
      for noise, sign in ((low, 1), (high, -1))
  )
  plots.save(
      plots.plot_points(
          {'': {
              name: [
                  plots.Point(noise, *_spread(gaps(found, noise)))
                  for noise in _NOISES
              ]
              for name, found in measured.items()
          }},
          label='(noise norm) / C',
          value_label='gain, dim minus global',
          lines={'no difference': 0.0},
          title=(
              f"Of {len(measured)} models, {ahead} keep more of LAMB's step "
              f'with clips by layer (dim) than with one norm at noise {low:g}, '
              f'and {behind} keep less at {high:g}'
          ),
      ),
      path,
  )


def _select(
    found: Mapping[str, Any],
    name: str,
    split: str,
    *,
    noise: float = _MAIN_NOISE,
    clip: float = _MAIN_CLIP,
    step: str = _MAIN_STEP,
) -> list[Any]:
  """A quantity of each replicate."""
  case = (split, noise, clip, step)
  return [
      row[name]
      for row in found['rows']
      if (row['split'], row['noise'], row['clip'], row['step']) == case
  ]


def _spread(values: Sequence[float]) -> tuple[float, float]:
  return float(np.mean(values)), float(np.std(values, ddof=1))


def _difference(
    first: Sequence[float], second: Sequence[float]
) -> confidence.Interval:
  return report_lib.paired(np.subtract(first, second).tolist())


def _verdicts(measured: Mapping[str, Any]) -> str:
  """In how many states `dim` is ahead of and behind the others, by noise."""
  found = []
  for other in _SPLITS[:2]:
    signs = [
        [_sign(each, other, noise) for each in measured.values()]
        for noise in _NOISES
    ]
    ahead, behind = (
        ', '.join(str(each.count(sign)) for each in signs) for sign in (1, -1)
    )
    found.append(f'ahead of `{other}` in {ahead} and behind in {behind}')
  return '; '.join(found)


def _sign(found: Mapping[str, Any], other: str, noise: float) -> int:
  """1 if `dim` is ahead of another way to clip, -1 if behind; 0: undecided."""
  gap = _difference(
      _select(found, 'gain', 'dim', noise=noise),
      _select(found, 'gain', other, noise=noise),
  )
  return int(gap.low > 0) - int(gap.high < 0)


def _gains(
    measured: Mapping[str, Any], cases: Mapping[str, dict[str, Any]]
) -> tables.Table:
  """Gains of the splits: cases are titles to arguments of `_select`."""
  rows = [['model', *cases]]
  for name, found in measured.items():
    rows.append([name, *(_gain(found, which) for which in cases.values())])
  return rows


def _gain(found: Mapping[str, Any], which: Mapping[str, Any]) -> str:
  """The gains of a case, and whether `dim` is ahead of `global` or behind."""
  gains = [_select(found, 'gain', split, **which) for split in _SPLITS]
  gap = _difference(gains[-1], gains[0])
  mark = ' +' if gap.low > 0 else ' -' if gap.high < 0 else ''
  return ' / '.join(f'{np.mean(each):.2f}' for each in gains) + mark


def _uncertainty(measured: Mapping[str, Any]) -> str:
  """How far replicates differ, in all tables of gains."""
  gains = (
      _select(found, 'gain', split, clip=clip, noise=noise, step=step)
      for found in measured.values()
      for clip, noise, step in _cases()
      for split in _SPLITS
  )
  largest = max(_spread(each)[1] for each in gains)
  return (
      f'Replicates have standard deviations of at most {largest:.2f} here and '
      'below.'
  )


def _sizes(measured: Mapping[str, Any]) -> str:
  """Parameters and layers of the models, of equal ones once, and C."""
  sizes = {}
  for name, found in measured.items():
    size = f'{found["num_elements"]:,} in {found["num_layers"]} layers'
    sizes.setdefault(size, name)
  norms = [found['median_norm'] for found in measured.values()]
  return (
      'Parameters: '
      + '; '.join(f'{name}: {size}' for size, name in sizes.items())
      + f'. Median norms are {min(norms):.3g} to {max(norms):.3g}.'
  )


def _ranges(measured: Mapping[str, Any]) -> tables.Table:
  """The least and the most of what clipping leaves, over the models."""
  rows = {}
  for quantity, index, title, digits in (
      ('noise_over_signal', 0, 'noise over mean, worst layer', '.2g'),
      ('noise_over_signal', 1, 'noise over mean, median layer', '.2g'),
      ('noise_over_signal', 2, 'noise over mean, best layer', '.2g'),
      ('layers_clipped', 0, 'layers clipped', '.0%'),
      ('bias', 0, 'cosine with the clean mean', '.3f'),
  ):
    cells = []
    for split in _SPLITS:
      means = [
          np.ravel(np.mean(_select(found, quantity, split), axis=0))[index]
          for found in measured.values()
      ]
      cells.append(f'{min(means):{digits}} to {max(means):{digits}}')
    rows[title] = cells
  return [['', *_SPLITS], *([title, *cells] for title, cells in rows.items())]
