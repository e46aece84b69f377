"""The federated paper's runs by name, from the tables of docs/recipe.md.

A row of a table there stands for several runs: one for each cell with a word
error rate, and one for each value of a letter in a cell. `read` expands them.

    >>> runs = published.read()
    >>> published.find(runs, 'Table 21, deep, uniform').gin_params[-1]
    'NOISE_MULTIPLIER = 0.01024'
"""

from collections.abc import Mapping, Sequence
import os
import re
import shlex
from typing import NamedTuple, Optional

from tff_asr import config
from tff_asr.storage import run_dir

_ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir)
PAGE = os.path.join(_ROOT, 'docs', 'recipe.md')

# Letters of columns that are settings. Other letters stand for a part of the
# run's words or of its settings.
_SETTING_COLUMNS = {'S': 'COHORT_SIZE', 'z': 'NOISE_MULTIPLIER'}
# Such a column's title, or a value after a word error rate.
_LETTER = re.compile(r'([A-Za-z]) = (\S+)')
_WORDS = re.compile(r'[^\s,:]+')
# Folders in which other runs look for their seed models, and these models.
_SEEDS = {
    'runs/ls_central_100': 'Table 3: seed LS-100',
    'runs/ls_central_960': 'Table 3: LS-960, central',
    'runs/cv_en_central': 'Table 3: seed CV-en',
    'runs/cv_en_central_05': 'Table 4: seed CV-en-05',
    'runs/cv_en_central_10': 'Table 4: seed CV-en-10',
    'runs/cv_fr_central_10': 'Table 10: seed CV-fr-10',
    'runs/cv_de_central_10': 'Table 10: seed CV-de-10',
    **{
        f'runs/ls_central_100_{steps}': f'Table 15: seed LS-100, M = {steps}'
        for steps in (30, 50, 70)
    },
    **{
        f'runs/ls_central_100_{size}': f'Table 21: seed LS-100, {size}'
        for size in ('narrow', 'shallow', 'wide', 'deep', 'baseline')
    },
}
_FOLDERS = {name: folder for folder, name in _SEEDS.items()}
# Speakers and utterances of each, by part.
_TINY_CORPUS = {
    'public': (4, 3), 'private': (6, 3), 'dev': (2, 2), 'test': (2, 2),
}
_TINY_COHORT_SIZE = 3
_TINY = {
    'MAX_BATCH_SEC': '30.0', 'EVALUATE_EVERY': '1', 'JIT': 'False',
    'LOSS_KERNEL': "'op'", 'ACTIVATION_DTYPE': "'float32'",
}
_TINY_CENTRAL = {'NUM_STEPS': '2', 'NUM_LOADERS': '1', 'PATIENCE': 'None'}
_TINY_FEDERATED = {'NUM_ROUNDS': '2', 'COHORT_SIZE': str(_TINY_COHORT_SIZE)}



class PublishedRun(NamedTuple):
  """A run of the paper.

  Attributes:
    name: A name that no other run has, as in 'Table 21: deep, uniform, z =
      0.01024'.
    table: The paper's table, as in 'Table 21', or where else it is reported.
    run: The run in the words of its row.
    file: The name of its file of gin/experiments.
    differs_by: Further gin files, and settings.
    wer: The printed word error rates in %, or words.
    source: Where its settings come from.
  """

  name: str
  table: str
  run: str
  file: str
  differs_by: tuple[str, ...]
  wer: str
  source: str

  @property
  def program(self) -> str:
    """The program that trains it, a file of bin."""
    kind = 'central' if '_central' in self.file else 'federated'
    return f'train_{kind}.py'

  @property
  def gin_files(self) -> tuple[str, ...]:
    return (
        f'gin/experiments/{self.file}.gin',
        *(each for each in self.differs_by if each.startswith('gin/')),
    )

  @property
  def gin_params(self) -> tuple[str, ...]:
    return tuple(
        each for each in self.differs_by if not each.startswith('gin/')
    )

  @property
  def is_tested_on_librispeech(self) -> bool:
    """Whether its rates are of LibriSpeech, otherwise of Common Voice."""
    if self.table == 'Table 4':  # Seed models before they are trained on.
      return False
    return self.table == 'Table 3' or self.file.startswith('ls_')

  @property
  def macros(self) -> dict[str, str]:
    """The settings that its files and parameters make, as text."""
    return config.macros_of_files(self.gin_files) | dict(
        each.split(' = ', 1) for each in self.gin_params
    )

  @property
  def folder(self) -> str:
    """Where it goes: for a seed model, where other runs look for it."""
    slug = re.sub(r'[^a-z0-9.]+', '_', self.name.lower()).strip('_')
    return _FOLDERS.get(self.name, f'runs/{slug}')

  def value(self, name: str) -> Optional[str]:
    """A setting's value as text, through references; None if it has none."""
    found = self.macros.get(name, 'None')
    if found.startswith('%'):
      return self.value(found[1:])
    return None if found == 'None' else found


def read(page: str = PAGE) -> list[PublishedRun]:
  """Reads the runs of docs/recipe.md.

  Args:
    page: The file.

  Raises:
    OSError: It cannot be read.
  """
  found, names = [], []
  with open(page, encoding='utf-8') as file:
    lines = file.read().splitlines()
  for line in lines:
    cells = [cell.strip() for cell in line.strip('|').split(' |')]
    if cells[:3] == ['table', 'run', 'file']:
      names = cells
    if len(cells) > 3 and re.fullmatch(r'`(ls|cv)_\w+`', cells[2]):
      row = dict(zip(names, cells, strict=True))
      for column, cell in row.items():
        if cell and (column == 'WER' or _LETTER.fullmatch(column)):
          found += [_run(row, column, each) for each in cell.split('; ')]
  return found


def find(runs: Sequence[PublishedRun], words: str) -> PublishedRun:
  """Returns the run that has a name, or the only one with all of some words.

  Args:
    runs: As `read` returns them.
    words: A name, or words of one in any order and case.

  Raises:
    ValueError: No run has these words, or several have.
  """
  found = search(runs, words)
  if len(found) == 1:
    return found[0]
  if not found:
    raise ValueError(
        f'no run of the paper has the words {words!r}: --list prints the names.'
    )
  shown = '; '.join(run.name for run in found[:4])
  more = f'; and {len(found) - 4} more' if len(found) > 4 else ''
  raise ValueError(
      f'{len(found)} runs have the words {words!r}: {shown}{more}. Give more '
      'words, or a whole name.'
  )


def search(runs: Sequence[PublishedRun], words: str) -> list[PublishedRun]:
  """Returns the run that has a name, or all with some words; see `find`."""
  exact = [run for run in runs if run.name == words]
  wanted = _WORDS.findall(words.lower())
  return exact or [
      run for run in runs if all(word in run.name.lower() for word in wanted)
  ]


def chain(
    runs: Sequence[PublishedRun], run: PublishedRun
) -> list[PublishedRun]:
  """Returns a run after the runs of its seed models, the first one first."""
  folder = run.value('INIT_FROM_RUN')
  if folder is None:
    return [run]
  (seed,) = [
      each for each in runs if each.name == _SEEDS[folder.strip("'")]
  ]
  return [*chain(runs, seed), run]


def evaluation_arguments(
    run: PublishedRun, *, folder: str
) -> list[list[str]]:
  """Returns arguments of bin/evaluate.py for both test sets of a run.

  Args:
    run: The run.
    folder: Where it is.
  """
  # Evaluation builds the model itself, so it needs the settings that change it.
  files = ['gin/experiments/published_evaluate.gin'] + [
      each
      for each in run.gin_files
      if each.startswith(('gin/models/', 'gin/data/'))
  ]
  params = [f"RUNS = ['{folder}']"] + [
      each for each in run.gin_params if each.startswith('NORM = ')
  ]
  corpus, parts = 'librispeech', ('test-clean', 'test-other')
  if not run.is_tested_on_librispeech:
    language = (run.value('LANGUAGE') or 'en').strip("'")
    corpus = f'cv_{language}'
    parts = ('dev', 'test')
  return [
      [f'--gin_file={each}' for each in files]
      + [
          f'--gin_param={each}'
          for each in (
              *params,
              f"TEST_DIR = 'data/{corpus}/{part}'",
              f"OUTPUT_NAME = '{part.replace('-', '_')}.json'",
          )
      ]
      for part in parts
  ]


def commands(
    runs: Sequence[PublishedRun],
    run: PublishedRun,
    *,
    tiny_dir: Optional[str],
) -> list[list[str]]:
  """Returns the arguments of Python that make a run and its seed models.

  Args:
    runs: All runs.
    run: One of them.
    tiny_dir: At toy size, with speech and runs in this folder, without what is
      there. If None, at the paper's size.
  """
  wanted = chain(runs, run)
  if tiny_dir is None:
    return [command for each in wanted for command in _training(each)]
  return _tiny_corpus(tiny_dir) + [
      command for each in wanted for command in _tiny(each, tiny_dir)
  ]


def shown(command: Sequence[str]) -> str:
  """Returns a command as it is typed into a shell, an argument a line."""
  lines = ' \\\n    '.join(map(_quoted, command))
  return f'python {lines}'.replace('-m \\\n    ', '-m ')


def _run(row: Mapping[str, str], column: str, cell: str) -> PublishedRun:
  """The run of one word error rate in a cell."""
  wer, _, value = cell.partition(', ')
  run = row['run']
  settings = re.findall('`(.+?)`', row.get('differs by', ''))
  described = []
  for letter, setting in _LETTER.findall(f'{column} {value}'):
    if letter in _SETTING_COLUMNS:
      settings.append(f'{_SETTING_COLUMNS[letter]} = {setting}')
      described.append(f'{letter} = {setting}')
      continue
    pattern = rf'(?<![A-Za-z]){letter}(?![A-Za-z])'
    replace = lambda text, p=pattern, to=setting: re.sub(p, lambda _: to, text)
    if replace(run) == run:
      described.append(f'{letter} = {setting}')
    run, settings = replace(run), list(map(replace, settings))
  table = row['table']
  place = f'Table {table}' if table[0].isdigit() else table.capitalize()
  return PublishedRun(
      ', '.join([f'{place}: {run}', *described]),
      place,
      run,
      row['file'].strip('`'),
      tuple(settings),
      wer if re.match(r'\d', cell) else cell,
      row['source'],
  )


def _training(run: PublishedRun) -> list[list[str]]:
  """The commands that train a run and evaluate it."""
  return [
      _command(run, folder=run.folder, params=run.gin_params),
      *(
          ['bin/evaluate.py', *each]
          for each in evaluation_arguments(run, folder=run.folder)
      ),
  ]


def _command(
    run: PublishedRun, *, folder: str, params: Sequence[str]
) -> list[str]:
  return [
      f'bin/{run.program}',
      f'--output_dir={folder}',
      *(f'--gin_file={each}' for each in run.gin_files),
      *(f'--gin_param={each}' for each in params),
  ]


def _tiny_corpus(tiny_dir: str) -> list[list[str]]:
  """The command that generates speech, unless it is there."""
  folder = os.path.join(tiny_dir, 'data')
  if os.path.isdir(folder):
    return []
  sizes = [
      f'--num_{part}_{what}={size}'
      for part, both in _TINY_CORPUS.items()
      for what, size in zip(('speakers', 'utterances'), both)
  ]
  return [['-m', 'data_tools.synthetic_population', f'--output_dir={folder}',
           *sizes]]


def _tiny(run: PublishedRun, tiny_dir: str) -> list[list[str]]:
  """The commands of a run at toy size, unless they were run."""
  folder = os.path.join(tiny_dir, run.folder)
  data = lambda part: repr(os.path.join(tiny_dir, 'data', part))
  settings = dict(each.split(' = ', 1) for each in run.gin_params)
  settings |= _TINY | {'DEV_DIR': data('dev')} | _tiny_model(run)
  if 'federated' in run.program:
    settings |= _TINY_FEDERATED | {'PRIVATE_DIR': data('private')}
    z, cohort_size = map(
        float, (run.value('NOISE_MULTIPLIER') or 0, run.value('COHORT_SIZE'))
    )
    # The mean has the paper's noise.
    settings['NOISE_MULTIPLIER'] = repr(z * _TINY_COHORT_SIZE / cohort_size)
    if run.value('NUM_LOCAL_EPOCHS'):
      settings['NUM_LOCAL_EPOCHS'] = '2'
  else:
    settings |= _TINY_CENTRAL | {'TRAIN_DIR': data('public')}
  seed = run.value('INIT_FROM_RUN')
  if seed is not None:
    settings['INIT_FROM_RUN'] = repr(
        os.path.join(tiny_dir, seed.strip("'"))
    )
  params = [f'{name} = {value}' for name, value in settings.items()]
  evaluation = [
      'bin/evaluate.py',
      '--gin_file=gin/experiments/published_evaluate.gin',
      *(
          f'--gin_file={each}'
          for each in run.gin_files
          if each.startswith('gin/data/')
      ),
      *(
          f'--gin_param={name} = {value}'
          for name, value in {
              'RUNS': [folder],
              'NORM': run.value('NORM'),
              'TEST_DIR': data('test'),
              'DEV_DIR': data('dev'),
              **_tiny_model(run),
          }.items()
      ),
  ]
  steps = {
      run_dir.RESULTS: _command(run, folder=folder, params=params),
      'test.json': evaluation,
  }
  return [
      command
      for written, command in steps.items()
      if not os.path.exists(os.path.join(folder, written))
  ]


def _tiny_model(run: PublishedRun) -> dict[str, str]:
  """The sizes of a run's model, much smaller, in the paper's proportions."""
  num_blocks, dim, mlp_dim = (
      int(run.value(name)) for name in ('NUM_BLOCKS', 'DIM', 'MLP_DIM')
  )
  # Two or more dimensions for each of the four heads.
  smaller = lambda size: str(4 * round(size / 192))
  return {
      'NUM_BLOCKS': str(max(1, num_blocks // 18)),
      'DIM': smaller(dim),
      'MLP_DIM': smaller(mlp_dim),
  }


def _quoted(argument: str) -> str:
  """An argument as a shell takes it; settings have quotes of their own."""
  name, _, value = argument.partition('=')
  if name == '--gin_param' and not set(value) & set('"\\`$!'):
    return f'{name}="{value}"'
  return shlex.quote(argument)
