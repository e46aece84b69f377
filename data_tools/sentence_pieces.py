"""Sentence pieces, trained on public text, as a gin file.

    python -m data_tools.sentence_pieces --input=public.txt --vocab_size=500 \\
        --output=pieces.gin

The text must be public. Pieces of private speakers' transcripts would reveal
what they say, which no epsilon covers. A run takes the pieces as its tokens
by --gin_file=pieces.gin, after its other files.

Trained by the package `sentencepiece`, an extra
(requirements-sentencepiece.txt); runs do not need it.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Sequence
import hashlib
import importlib.util
import json
import os
import pprint
import subprocess
import sys

from absl import flags

from data_tools import text
from data_tools import text_files
from tff_asr import checks
from tff_asr import files
from tff_asr.text import tokenizer

_INPUT = flags.DEFINE_list(
    'input', None, 'Text files of public text, a sentence a line (.gz too).'
    ' Required.'
)
_OUTPUT = flags.DEFINE_string(
    'output', None, 'The gin file to write, as pieces.gin. Required.'
)
_VOCAB_SIZE = flags.DEFINE_integer(
    'vocab_size',
    500,
    'Outputs of the model: the blank, and pieces, with single characters.',
    lower_bound=2,
)
_TEXT = flags.DEFINE_enum(
    'text',
    'normalise',
    ['normalise', 'keep'],
    'As for data_tools.manifest: what becomes of the text.',
)
_INSTALL = (
    'to train pieces takes another package; install it with: pip install '
    '--no-deps -r requirements-sentencepiece.txt.'
)
_TRAIN = 'from data_tools import piece_trainer; piece_trainer.main()'
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Digits of the scores that are written.
_DIGITS = 4


def train(
    sentences: Sequence[str], *, vocab_size: int, characters: str = ''
) -> dict[str, float]:
  """Trains a unigram model.

  Args:
    sentences: Public text, as transcripts are written.
    vocab_size: One more than the pieces to end with; every character of the
      text is one.
    characters: Further ones to have as pieces, if the text lacks them.

  Returns:
    Scores by piece, as `tokenizer.SentencePieceTokenizer` takes them.

  Raises:
    ValueError: `sentencepiece` is not installed, or the text gives no such
      model, as where it is too short.
  """
  checks.positive_int(vocab_size=vocab_size)
  if importlib.util.find_spec('sentencepiece') is None:
    raise ValueError(_INSTALL)
  job = {
      'sentences': list(sentences),
      'vocab_size': vocab_size,
      'characters': characters.replace(' ', ''),
  }
  finished = subprocess.run(
      [sys.executable, '-c', _TRAIN],
      # The new interpreter must find this package.
      env=os.environ | {'PYTHONPATH': _ROOT},
      input=json.dumps(job).encode(),
      stdout=subprocess.PIPE,
      check=True,
  )
  result = json.loads(finished.stdout)
  if 'error' in result:
    raise ValueError(
        f'--vocab_size={vocab_size} does not go with the text: '
        f'{result["error"]}'
    )
  # Rounded: the text of the gin file is what identifies the pieces.
  return {piece: round(score, _DIGITS) for piece, score in result['pieces']}


def _gin(pieces: dict[str, float], *, source: str) -> str:
  """The gin file."""
  return '\n'.join([
      f'# {len(pieces)} sentence pieces and their scores, by',
      '# data_tools.sentence_pieces: a --gin_file after the others. The text',
      '# must be public: no epsilon covers it.',
      'from __gin__ import dynamic_registration',
      '',
      'from tff_asr.text import tokenizer',
      '',
      'TOKENIZER = @tokenizer.SentencePieceTokenizer()',
      f'tokenizer.SentencePieceTokenizer.source = {source!r}',
      'tokenizer.SentencePieceTokenizer.pieces = \\',
      # gin takes no line that begins without a space.
      *(f'    {line}' for line in pprint.pformat(pieces).splitlines()),
      '',
  ])


def _main(unused_argv: Sequence[str]) -> None:
  if not _INPUT.value:
    raise ValueError('--input is needed; see --help.')
  if not _OUTPUT.value:
    raise ValueError('--output is needed; see --help.')
  lines = [
      line for path in _INPUT.value for _, line in text_files.read_lines(path)
  ]
  normalises = _TEXT.value == 'normalise'
  sentences, changes = text.sentences(lines, normalises=normalises)
  pieces = train(
      sentences,
      vocab_size=_VOCAB_SIZE.value,
      characters=tokenizer.PUNCTUATION if normalises else '',
  )
  made = tokenizer.SentencePieceTokenizer(pieces)
  digest = hashlib.sha256('\n'.join(sentences).encode()).hexdigest()
  names = ', '.join(map(os.path.basename, _INPUT.value))
  source = (
      f'sentence pieces, trained on {len(sentences):,} lines of {names} '
      f'(SHA-256 {digest[:16]}), which must be public'
  )
  files.write_text(_OUTPUT.value, _gin(pieces, source=source))
  print(
      f'{len(pieces)} pieces of {len(sentences):,} lines. Transcripts can have'
      f' these characters: {made.characters!r}'
  )
  for remark in changes.remarks(names):
    print(remark)
  print(f'To train: --gin_file={_OUTPUT.value} after all other --gin_file.')


if __name__ == '__main__':
  launch.run(_main, after_interrupt='the same command starts again.')
