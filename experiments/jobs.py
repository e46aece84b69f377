"""Programs of a study that remain to be run, and the runs that they make.

Finished work is recognised by the folders below a runs folder, so a study can
be continued after any interruption.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent import futures
import os
import queue
import subprocess
import sys
import time
from typing import Any, NamedTuple, Optional

from experiments import design
from tff_asr import files
from tff_asr.reports import runs as runs_lib
from tff_asr.storage import run_dir

_BIN = os.path.join(os.path.dirname(__file__), os.pardir, 'bin')
_DATA = {design.CENTRAL: 'TRAIN_DIR', design.FEDERATED: 'PRIVATE_DIR'}


class Job(NamedTuple):
  """A program to be run: its own name, and arguments of Python."""

  name: str
  command: Sequence[str]


class Folders(NamedTuple):
  """The folders of experiments, and what they hold.

  Attributes:
    data_dir: The shards.
    runs_dir: The runs, and the logs of what was started.
    suite: What is run.
    language_model: KenLM model for a second decoding; None: the suite's.
  """

  data_dir: str
  runs_dir: str
  suite: design.Suite
  language_model: Optional[str] = None

  def shards(
      self, speakers: str, model: design.Model = design.Model()
  ) -> str:
    """The shards of public, private, dev or test speakers, for a model."""
    names = model.shards or self.suite.shards
    return os.path.join(self.data_dir, names.format(speakers))

  def folds(self) -> list['Folders']:
    """The folders of each fold; of a suite without folds, these."""
    if self.suite.num_folds == 1:
      return [self]
    return [
        self._replace(
            data_dir=os.path.join(self.data_dir, fold_name(number)),
            runs_dir=os.path.join(self.runs_dir, fold_name(number)),
        )
        for number in range(self.suite.num_folds)
    ]

  def tests(self) -> list[str]:
    """The parts that models are decoded on."""
    first, *others = self.suite.tests
    return [first, *(t for t in others if os.path.isdir(self.shards(t)))]

  def log(self, name: str) -> str:
    """The file of a job's output."""
    return os.path.join(self.runs_dir, 'logs', f'{name}.log')

  def path(self, run: design.Run) -> str:
    """The folder of a run."""
    return os.path.join(self.runs_dir, run.name)

  def read(self, run: design.Run, *, test: str = 'test') -> runs_lib.Run:
    """Reads a run that is trained, with its evaluation on a part.

    Raises:
      ValueError: It was run with other settings of its recipe than these. What
        an experiment's own files or a seed model were then is not compared.
    """
    (found,) = runs_lib.read([self.path(run)], evaluation=evaluation(test))
    for name, value in run.settings.items():
      if found.settings.get(name, str(value)) != str(value):
        raise ValueError(
            f'{found.path} was run with {name} = {found.settings[name]}, which '
            f'is {value} now: move it away, or take another runs_dir.'
        )
    return found

  def is_trained(self, run: design.Run) -> bool:
    """True if a run has ended, with these settings (see `read`)."""
    has_ended = os.path.exists(os.path.join(self.path(run), run_dir.RESULTS))
    return has_ended and bool(self.read(run))

  @property
  def lm_path(self) -> Optional[str]:
    """The language model to decode with: the one named, or the suite's."""
    if self.language_model is not None or self.suite.language_model is None:
      return self.language_model
    path = os.path.join(self.data_dir, self.suite.language_model)
    # It is made with the shards.
    return path if os.path.isfile(path) else None

  def is_evaluated(self, run: design.Run, test: str) -> bool:
    """True if a run has been decoded on a part, with the language model."""
    if not os.path.exists(os.path.join(self.path(run), evaluation(test))):
      return False
    if self.lm_path is None:
      return True
    with_lm = self.read(run, test=test).with_lm
    digest = files.sha256(self.lm_path)
    return with_lm is not None and with_lm['sha256'] == digest

  def training(self, run: design.Run) -> Job:
    """Trains a run, or trains it on."""
    recipe = run.recipe
    paths = {
        _DATA[recipe.program]: self.shards(recipe.part, recipe.model),
        'DEV_DIR': self.shards('dev', recipe.model),
    }
    if run.parent is not None:
      paths['INIT_FROM_RUN'] = self.path(run.parent)
    return _program(
        run.name,
        f'{recipe.program}.py',
        f'--output_dir={self.path(run)}',
        experiment=recipe.experiment,
        gin_files=(*recipe.model.gin_files, *recipe.gin_files),
        settings=run.settings | {k: repr(v) for k, v in paths.items()},
    )


def fold_name(number: int) -> str:
  """Name of the folder of a fold."""
  return f'fold_{number}'


def shards(
    source: Optional[str], *, test: Optional[str] = None, folders: Folders
) -> Job:
  """Makes a suite's shards, or checks those that are there."""
  module, *flags = folders.suite.data
  if source is not None:
    flags.append(f'--source_dir={source}')
  if test is not None:
    flags.append(f'--test_dir={test}')
  output = f'--output_dir={folders.data_dir}'
  return Job('shards', ('-m', module, output, *flags))


def make_shards(
    source: Optional[str], *, test: Optional[str] = None, folders: Folders
) -> None:
  """Makes a suite's shards, or checks those that are there.

  Raises:
    ValueError: They could not be made; it names the log.
  """
  job = shards(source, test=test, folders=folders)
  if run_all([job], folders=folders, num_at_once=1):
    raise ValueError(
        f'The shards could not be made: see {folders.log(job.name)}.'
    )


def untrained(
    runs: Sequence[design.Run],
    *,
    folders: Folders,
    failed: Collection[str] = (),
) -> list[Job]:
  """Trainings that can be started now of runs and of what they start from.

  Args:
    runs: The runs.
    folders: Where things are.
    failed: Names of jobs that are not tried again, nor what hangs on them.
  """
  jobs = {}
  for run in runs:
    missing_runs = [
        each for each in run.lineage if not folders.is_trained(each)
    ]
    if missing_runs and not any(each.name in failed for each in missing_runs):
      jobs[missing_runs[0].name] = folders.training(missing_runs[0])
  return list(jobs.values())


def missing(
    study: design.Study, *, folders: Folders, failed: Collection[str] = ()
) -> list[Job]:
  """Jobs of a study that can be started now.

  Its models are decoded on the test speakers when all that could be trained is
  trained.

  Args:
    study: The study.
    folders: Where things are.
    failed: Names of jobs that are not tried again, nor what hangs on them.
  """
  if inputs := [
      job for job in _inputs(study, folders=folders) if job.name not in failed
  ]:
    return inputs
  if jobs := untrained(study.runs, folders=folders, failed=failed):
    return jobs
  evaluations = _evaluations(study, folders=folders)
  return [job for job in evaluations if job.name not in failed]


def _inputs(study: design.Study, *, folders: Folders) -> Iterator[Job]:
  """Makes features of public models, and the language model, if missing."""
  features = {}
  for row in study.rows:
    for recipe in row.recipe.lineage:
      if recipe.model.pretrained is not None:
        features |= _features(recipe, folders=folders)
  yield from (
      job for path, job in features.items() if not os.path.isdir(path)
  )
  language_model = folders.suite.language_model
  if language_model is not None:
    path = os.path.join(folders.data_dir, language_model)
    if not os.path.exists(path):
      yield Job('language_model', (
          '-m', 'data_tools.ngram', f'--input={folders.shards("public")}',
          '--order=3', f'--output={path}',
      ))


def _features(recipe: design.Recipe, *, folders: Folders) -> dict[str, Job]:
  """What makes the features that a recipe needs, by their folders."""
  model = recipe.model
  parts = {recipe.part: (recipe.speakers, recipe.speeds)}
  parts |= {part: (part, ()) for part in ('dev', *folders.tests())}
  jobs = {}
  for part, (source, speeds) in parts.items():
    path = folders.shards(part, model)
    command = (
        '-m', 'data_tools.embed', f'--pretrained={model.pretrained}',
        f'--audio_dir={folders.shards(source)}', f'--features_dir={path}',
    )
    if speeds:
      command = (*command, f'--speeds={",".join(map(str, speeds))}')
    jobs[path] = Job(f'features_{part}', command)
  return jobs


def run_all(
    jobs: Sequence[Job], *, folders: Folders, num_at_once: int
) -> set[str]:
  """Runs jobs; with several at a time they divide the processors.

  What a job prints is added to its log. All of them are asked to end, and to
  save their states, when this is interrupted.

  Returns:
    Names of the jobs that failed: ended with another status than 0.
  """
  processors = sorted(os.sched_getaffinity(0))
  shares = queue.SimpleQueue()
  for number in range(num_at_once):
    shares.put(processors[number::num_at_once] or processors)
  running = set()
  os.makedirs(os.path.dirname(folders.log('')), exist_ok=True)

  def run(job: Job) -> int:
    share, began = shares.get(), time.monotonic()
    with open(
        folders.log(job.name), 'ab', opener=files.open_own
    ) as log:
      process = subprocess.Popen(
          # TensorFlow makes as many threads as it has processors.
          [
              'taskset', '--cpu-list', ','.join(map(str, share)),
              sys.executable, *job.command,
          ],
          stdin=subprocess.DEVNULL,
          stdout=log,
          stderr=subprocess.STDOUT,
          # Ctrl-C is for this process, which ends the others, once.
          start_new_session=True,
      )
    running.add(process)
    status = process.wait()
    running.remove(process)
    shares.put(share)
    outcome = f'failed ({status})' if status else 'ended'
    seconds = time.monotonic() - began
    print(f'{outcome} {job.name} after {seconds:.0f} s', flush=True)
    return status

  with futures.ThreadPoolExecutor(num_at_once) as pool:
    try:
      statuses = list(pool.map(run, jobs))
    except BaseException:
      pool.shutdown(wait=False, cancel_futures=True)
      for process in list(running):
        process.terminate()
      raise
  return {job.name for job, status in zip(jobs, statuses) if status}


def evaluation(test: str) -> str:
  """Name of the file of an evaluation on a part, in a run's folder."""
  return f'{test}.json'


def _evaluations(study: design.Study, *, folders: Folders) -> Iterator[Job]:
  """Decodes the models that are not decoded yet.

  One job for each model and part.
  """
  models = []
  for run in study.runs:
    if run.recipe.model not in models:
      models.append(run.recipe.model)
  for number, model in enumerate(models):
    for test in folders.tests():
      paths = [
          folders.path(run)
          for run in study.runs
          if run.recipe.model == model
          and folders.is_trained(run)
          and not folders.is_evaluated(run, test)
      ]
      if paths:
        suffix = '' if test == 'test' else f'_{test}'
        yield _evaluation(
            f'evaluate_{study.name}_{number}{suffix}',
            paths,
            model=model,
            test=test,
            folders=folders,
        )


def _evaluation(
    name: str,
    paths: Sequence[str],
    *,
    model: design.Model,
    test: str,
    folders: Folders,
) -> Job:
  """Decodes a part with the models of some runs."""
  settings = {
      'RUNS': paths,
      'TEST_DIR': repr(folders.shards(test, model)),
      'OUTPUT_NAME': repr(evaluation(test)),
  }
  if folders.lm_path is not None:
    settings |= {
        'LANGUAGE_MODEL': repr(folders.lm_path),
        'DEV_DIR': repr(folders.shards('dev', model)),
    }
  return _program(
      name,
      'evaluate.py',
      experiment=model.evaluation or folders.suite.evaluation,
      gin_files=model.gin_files,
      settings={**model.settings, **settings},
  )


def _program(
    name: str,
    program: str,
    *flags: str,
    experiment: str,
    gin_files: Sequence[str],
    settings: Mapping[str, Any],
) -> Job:
  """A program of bin with an experiment, further files and settings."""
  files = (f'gin/experiments/{experiment}.gin', *gin_files)
  return Job(
      name,
      (
          os.path.normpath(os.path.join(_BIN, program)),
          *flags,
          *(f'--gin_file={path}' for path in files),
          *(f'--gin_param={key} = {each}' for key, each in settings.items()),
      ),
  )
