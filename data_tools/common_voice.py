"""Common Voice (https://commonvoice.mozilla.org/datasets) to shards.

    python -m data_tools.common_voice \\
        --source_dir=cv-corpus-13.0-2023-03-09/en --language=en \\
        --output_dir=data/common_voice --splits=train,dev,test

The layout is SPLIT.tsv next to clips/; --source_dir is a language's folder or
the published .tar.gz, or holds it. A client is a `client_id`. Clips are
resampled to 16 kHz. Sentences become the published letters of en, fr and de; of
another language the letters of its transcripts, or those of --letters. Kept
of a speaker are gender, age and accent, where the rows of the split agree.

--transliteration=unidecode reproduces the published code's sentences exactly.
It needs the package Unidecode, which is under the GPL and not part of this
project: installing it is the user's choice.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Callable, Iterable, Mapping, Sequence
import functools
import importlib
import os

from absl import flags

from data_tools import conversion
from data_tools import text
from data_tools import text_files
from data_tools import utterances
from tff_asr import checks
from tff_asr.text import tokenizer

_LANGUAGE = flags.DEFINE_string(
    'language', 'en', "The language's code, as en, fr, de or another."
)
_LETTERS = flags.DEFINE_string(
    'letters', None, 'The letters to keep, where the language has no set here.'
)
_DASHES = flags.DEFINE_enum(
    'dashes',
    'space',
    text.DASHES,
    'What becomes of dashes and slashes; the published recipe drops them, which'
    ' joins the words next to them.',
)
_TRANSLITERATION = flags.DEFINE_enum(
    'transliteration',
    'anyascii',
    ('anyascii', 'unidecode'),
    "How other letters become the language's: unidecode is the published"
    ' recipe to the letter, with --dashes=drop, where the user has installed'
    ' the package Unidecode (GPL).',
)

_SPLITS = ('train', 'dev', 'test', 'validated')
_COLUMNS = ('client_id', 'path', 'sentence')
# Attributes to the columns that releases have them in.
_ATTRIBUTE_COLUMNS = {
    'gender': ('gender',),
    'age': ('age',),
    'accent': ('accent', 'accents'),
}
# Since 2024: some of a speaker's rows have the older words, others these.
_OLDER_WORDS = {
    'male_masculine': 'male',
    'female_feminine': 'female',
    'do_not_wish_to_say': '',
}


def list_utterances(
    source_dir: str,
    *,
    split: str,
    language: str = 'en',
    letters: str | None = None,
    dashes: str = 'space',
    transliteration: str = 'anyascii',
) -> utterances.Listing:
  """Lists a split.

  Problems are: a line without the header's number of fields or without a
  client, a clip that occurs twice, and a sentence without its clip.

  Args:
    source_dir: A language's folder.
    split: The name of a .tsv: 'train', 'dev', 'test', 'validated'.
    language: The language's code.
    letters: What to keep; None for those of the language, or of the sentences
      of all the folder's splits if the language has no published set.
    dashes: See `text.normalize_common_voice`.
    transliteration: 'anyascii'; or 'unidecode', which is
      `text.normalize_as_published`.

  Raises:
    ValueError: If the .tsv is missing, lacks a column or is of another
      language; if Unidecode is wanted and not installed, or without
      dashes='drop'.
  """
  normalize = _normalizer(transliteration, dashes=dashes, language=language)
  path = os.path.join(source_dir, f'{split}.tsv')
  if not os.path.isfile(path):
    names = sorted(n for n in os.listdir(source_dir) if n.endswith('.tsv'))
    found = f'but {", ".join(names)}' if names else 'nor any other .tsv file'
    raise ValueError(
        f'{source_dir} contains no {split}.tsv, {found}; set --splits, or'
        f' --source_dir to the folder of the language {language!r}.'
    )
  rows, problems = _read_tsv(path)
  _check_language(rows, path=path, language=language)
  if letters is None:
    letters = tokenizer.LETTERS.get(language)
  if letters is None:
    letters = text.letters_of(_sentences(source_dir), language=language)
  clips_dir = os.path.join(source_dir, 'clips')
  # Listed once: asking for each of a million clips takes minutes.
  clips = frozenset(os.listdir(clips_dir) if os.path.isdir(clips_dir) else ())
  listed: list[utterances.Utterance] = []
  seen = set()
  for row in rows:
    name = row['path'] + ('' if row['path'].endswith('.mp3') else '.mp3')
    client_id, stem = row['client_id'], os.path.splitext(name)[0]
    reason = None
    if not client_id:
      reason = 'has no client_id'
    elif name in seen:
      reason = 'occurs twice'
    elif name not in clips:
      reason = 'has no audio file'
    seen.add(name)
    if reason is not None:
      detail = f'{path}: clip {name} {reason}.'
      problems.append(utterances.Problem(client_id, stem, reason, detail))
      continue
    transcript, changes = normalize(row['sentence'], letters=letters)
    listed.append(
        utterances.Utterance(
            client_id=client_id,
            utterance_id=stem,
            transcript=transcript,
            audio=os.path.join(clips_dir, name),
            changes=changes,
        )
    )
  return utterances.Listing(listed, problems, _speaker_attributes(rows))


def _normalizer(
    transliteration: str, *, dashes: str, language: str
) -> Callable[..., tuple[str, Sequence[str]]]:
  """Returns the function that normalises a sentence to `letters`."""
  if transliteration == 'anyascii':
    return functools.partial(
        text.normalize_common_voice, dashes=dashes, language=language
    )
  checks.one_of(('unidecode',), transliteration=transliteration)
  # A run must not claim the published recipe with another rule.
  if dashes != 'drop':
    raise ValueError(
        'transliteration unidecode is the published recipe, which drops dashes;'
        ' add --dashes=drop.'
    )
  try:
    # By name, so that no import of a GPL package stands in the code.
    unidecode = importlib.import_module('unidecode')
  except ImportError as error:
    raise ValueError(
        'transliteration unidecode needs the package Unidecode, which is under'
        ' the GPL and no part of this project; `pip install Unidecode`, or keep'
        ' --transliteration=anyascii.'
    ) from error
  return functools.partial(
      text.normalize_as_published, transliterate=unidecode.unidecode
  )


def _speaker_attributes(
    rows: Sequence[Mapping[str, str]],
) -> utterances.Attributes:
  """Attributes of speakers for which the release has columns."""
  columns = {
      name: column
      for name, columns in _ATTRIBUTE_COLUMNS.items()
      for column in columns
      if rows and column in rows[0]
  }

  def stated():
    for row in rows:
      yield row['client_id'], {
          name: _OLDER_WORDS.get(row[column], row[column])
          for name, column in columns.items()
      }

  return utterances.gather_attributes(list(columns), stated())


def _read_tsv(
    path: str,
) -> tuple[list[dict[str, str]], list[utterances.Problem]]:
  """The rows of a .tsv, and a problem for each line that is not a row."""
  header, rows, problems, _ = text_files.read_table(path)
  missing = [column for column in _COLUMNS if column not in header]
  if missing:
    raise ValueError(
        f'{path} has no column {missing[0]!r}, but {", ".join(header)}; it is'
        ' no .tsv of Common Voice.'
    )
  return [row for _, row in rows], problems


def _check_language(
    rows: Iterable[Mapping[str, str]], *, path: str, language: str
) -> None:
  """Raises ValueError if a row is of another language."""
  for row in rows:
    locale = row.get('locale') or language  # Old releases have no column.
    if locale != language:
      raise ValueError(
          f'{path} holds clip {row["path"]} of locale {locale!r}, but'
          f' --language is {language!r}; set --language={locale}, or'
          f' --source_dir to the folder of {language}.'
      )


def _holds(folder: str, split: str, language: str) -> bool:
  """True for a folder with a split in the language (by its first row)."""
  path = os.path.join(folder, f'{split}.tsv')
  if not os.path.isfile(path):
    return False
  # Two lines only: a table may have millions.
  lines = (line.split('\t') for _, line in text_files.read_lines(path))
  header, first = next(lines, []), next(lines, [])
  return dict(zip(header, first)).get('locale') in (None, '', language)


def _is_named(archive: str, split: str, language: str) -> bool:
  """True for the language's archive, as cv-corpus-DATE-en.tar.gz."""
  del split  # An archive holds all of them.
  return archive.startswith(f'{language}.') or f'-{language}.' in archive


def _sentences(source_dir: str) -> list[str]:
  """The sentences of all splits that exist."""
  # All splits, so that each has the same letters.
  present = (f'{name}.tsv' for name in _SPLITS)
  paths = [os.path.join(source_dir, name) for name in present]
  return [
      row['sentence']
      for path in paths
      if os.path.isfile(path)
      for row in _read_tsv(path)[0]
  ]


def corpus(
    language: str,
    *,
    letters: str | None = None,
    dashes: str = 'space',
    transliteration: str = 'anyascii',
) -> conversion.Corpus:
  """Returns Common Voice in one language; see `list_utterances`."""
  # Refused before a file is read.
  _normalizer(transliteration, dashes=dashes, language=language)
  return conversion.Corpus(
      name=f'Common Voice {language}',
      namespace='Common Voice',
      list_utterances=functools.partial(
          list_utterances,
          language=language,
          letters=letters,
          dashes=dashes,
          transliteration=transliteration,
      ),
      holds_split=functools.partial(_holds, language=language),
      is_named=functools.partial(_is_named, language=language),
      default_splits=('train', 'dev', 'test'),
  )


if __name__ == '__main__':
  conversion.main(
      lambda: corpus(
          _LANGUAGE.value,
          letters=_LETTERS.value,
          dashes=_DASHES.value,
          transliteration=_TRANSLITERATION.value,
      ),
      flag_names=('language', 'letters', 'dashes', 'transliteration'),
  )
