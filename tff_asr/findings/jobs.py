"""What is still to be run of groups of findings, as programs to start."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import os
import sys
from typing import Any, NamedTuple

from tff_asr.findings import experiments
from tff_asr.findings import job_queue

# How AN4's speakers are divided.
PARTITION = 'public=28,private=rest,dev=4,test=10'
_EVALUATION = 'an4_evaluate'
_EVALUATION_JOB = 'evaluate_'
_LOGS = 'logs'


class Folders(NamedTuple):
  """Where things are.

  Attributes:
    bin_dir: The programs.
    data_dir: AN4's shards.
    runs_dir: The runs, and the logs of what was started.
  """

  bin_dir: str
  data_dir: str
  runs_dir: str

  def shards(self, speakers: str) -> str:
    """The shards of public, private, dev or test speakers."""
    return os.path.join(self.data_dir, f'train.{speakers}')

  def log(self, name: str) -> str:
    """What a job prints."""
    return os.path.join(self.runs_dir, _LOGS, f'{name}.log')


def shards_job(source: str, *, folders: Folders) -> job_queue.Job:
  """Makes AN4's shards, or checks those that are there."""
  command = (
      sys.executable,
      '-m',
      'data_tools.an4',
      f'--source_dir={source}',
      f'--output_dir={folders.data_dir}',
      '--splits=train',
      f'--partition={PARTITION}',
      # Every run reads the same few speakers many times.
      '--encoding=log_mel',
  )
  return job_queue.Job('shards', command, folders.log('shards'))


def missing(
    groups: Sequence[experiments.Group], *, folders: Folders
) -> Callable[[frozenset[str]], Iterator[job_queue.Job]]:
  """What `job_queue.run` takes: jobs that could be started now, in order.

  A group's models are decoded on the test speakers when all that could be
  trained of it is trained.

  Args:
    groups: In the order in which they are wanted.
    folders: Where things are.

  Returns:
    A function of the names of jobs that failed.
  """

  def wanted(failed: frozenset[str]) -> Iterator[job_queue.Job]:
    for group in groups:
      is_over = True
      for run in _runs(group, runs_dir=folders.runs_dir):
        job = _next_of(run, folders=folders, failed=failed)
        if job is not None:
          is_over = False
          yield job
      if is_over:
        yield from _evaluations(group, folders=folders)

  return wanted


def is_evaluation(job: job_queue.Job) -> bool:
  """Whether a job decodes, so that there is something new to report."""
  return job.name.startswith(_EVALUATION_JOB)


def num_left(
    groups: Sequence[experiments.Group], *, runs_dir: str
) -> tuple[int, int]:
  """Runs that are not trained yet, as far as is known, and all of them."""
  is_left = {
      run.name: not experiments.is_trained(run, runs_dir=runs_dir)
      for group in groups
      for run in _runs(group, runs_dir=runs_dir)
  }
  return sum(is_left.values()), len(is_left)


def _runs(
    group: experiments.Group,
    *,
    runs_dir: str,
    of: Callable[..., list[experiments.Run]] = experiments.wanted,
) -> list[experiments.Run]:
  """The runs of a group's rows, each once; those known to be needed."""
  runs = {
      run.name: run
      for row in group.rows
      for run in of(row, runs_dir=runs_dir)
  }
  return list(runs.values())


def _next_of(
    run: experiments.Run, *, folders: Folders, failed: frozenset[str]
) -> job_queue.Job | None:
  """What is to be done first of a run and of the one that it starts from."""
  is_trained = experiments.is_trained(run, runs_dir=folders.runs_dir)
  if is_trained or run.name in failed:
    return None
  if run.recipe.parent is not None:
    parent = experiments.Run(run.recipe.parent)
    if not experiments.is_trained(parent, runs_dir=folders.runs_dir):
      return _next_of(parent, folders=folders, failed=failed)
  return _training(run, folders=folders)


def _training(run: experiments.Run, *, folders: Folders) -> job_queue.Job:
  """Trains a run, or trains it on."""
  recipe = run.recipe
  data = {
      experiments.CENTRAL: 'TRAIN_DIR', experiments.FEDERATED: 'PRIVATE_DIR'
  }[recipe.program]
  paths = {
      data: folders.shards(recipe.speakers), 'DEV_DIR': folders.shards('dev')
  }
  if recipe.parent is not None:
    parent = experiments.Run(recipe.parent)
    paths['INIT_FROM_RUN'] = experiments.folder(parent, runs_dir=folders.runs_dir)
  command = (
      sys.executable,
      os.path.join(folders.bin_dir, f'{recipe.program}.py'),
      f'--output_dir={experiments.folder(run, runs_dir=folders.runs_dir)}',
      *_gin(
          recipe.experiment,
          *recipe.model.gin_files,
          *recipe.gin_files,
          settings=run.settings | {k: repr(v) for k, v in paths.items()},
      ),
  )
  return job_queue.Job(run.name, command, folders.log(run.name))


def _evaluations(
    group: experiments.Group, *, folders: Folders
) -> Iterator[job_queue.Job]:
  """Decodes what is shown and not decoded yet, one job a model.

  Of learning rates that were tried, only the one that was taken.
  """
  models: list[experiments.Model] = []
  runs: list[list[str]] = []
  shown = _runs(group, runs_dir=folders.runs_dir, of=experiments.averaged)
  for run in shown:
    if run.recipe.model not in models:
      models.append(run.recipe.model)
      runs.append([])
    if experiments.is_trained(
        run, runs_dir=folders.runs_dir
    ) and not experiments.is_evaluated(run, runs_dir=folders.runs_dir):
      runs[models.index(run.recipe.model)].append(
          experiments.folder(run, runs_dir=folders.runs_dir)
      )
  for number, (model, paths) in enumerate(zip(models, runs)):
    if not paths:
      continue
    settings = dict(model.settings)
    settings |= {'RUNS': paths, 'TEST_DIR': repr(folders.shards('test'))}
    command = (
        sys.executable,
        os.path.join(folders.bin_dir, 'evaluate.py'),
        *_gin(_EVALUATION, *model.gin_files, settings=settings),
    )
    name = f'{_EVALUATION_JOB}{group.name}_{number}'
    yield job_queue.Job(name, command, folders.log(name))


def _gin(
    experiment: str, *gin_files: str, settings: Mapping[str, Any]
) -> list[str]:
  """Flags for an experiment, further files and settings."""
  files = (f'gin/experiments/{experiment}.gin', *gin_files)
  return [
      *(f'--gin_file={path}' for path in files),
      *(f'--gin_param={name} = {value}' for name, value in settings.items()),
  ]
