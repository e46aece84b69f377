"""CTC heads and vocabularies of fine-tuned models of `transformers`.

A folder of `Wav2Vec2ForCTC` or `HubertForCTC` has, besides the encoder that
`hugging_face` reads, a linear layer `lm_head` and the files of a
`Wav2Vec2CTCTokenizer`: vocab.json, tokenizer_config.json and others, of which
only the first one must exist. What becomes of the tokens of the vocabulary:

- The pad token, `<pad>` unless the files name another, is the blank. It may
  have any id, and is our last output.
- The word delimiter, `|` unless the files name another, is a space.
- `<s>`, `</s>`, `<unk>` and what the files name as special tokens have no text.
- A single character is itself, in lower case unless two would then be the same.
- Any other token is refused.

`transformers` writes special tokens as text unless it is told to skip them.
"""

from collections.abc import Mapping
import os
import re
from typing import NamedTuple

import numpy as np

from tff_asr.models import weights as weights_lib
from tff_asr.pretrained import hugging_face
from tff_asr.pretrained import public_model
from tff_asr.pretrained import tensor_rules
from tff_asr.text import tokenizer as tokenizer_lib

_RULES = {
    'head/bias': tensor_rules.Rule(('lm_head.bias',)),
    'head/kernel': tensor_rules.Rule(('lm_head.weight',)),
}
_PAD = '<pad>'
# Never text, whether or not the files declare them.
_SPECIAL = ('<s>', '</s>', '<unk>', _PAD)
_DELIMITER = '|'
_TAKE = 'Take another model.'


class CtcHead(NamedTuple):
  """A linear layer to V logits, and the text of its outputs.

  Attributes:
    weights: float32 arrays: `head/bias` [V] and `head/kernel` [D, V], with the
      outputs in the order of the tokenizer and the blank last.
    tokenizer: Its tokens.
  """

  weights: dict[str, np.ndarray]
  tokenizer: tokenizer_lib.CharTokenizer


def read(public: public_model.PublicModel) -> CtcHead:
  """Reads the head of a public model.

  Args:
    public: The model, as `hugging_face.load` returned it.

  Raises:
    ValueError: The model has no CTC head, a file is missing or damaged, or the
      vocabulary does not suit the head or has tokens other than those above.
    OSError: A file cannot be read.
  """
  folder = os.path.dirname(public.files[0])
  tensors = None
  if public.family != 'whisper':
    tensors = hugging_face.FolderTensors(folder, prefix='')
  if tensors is None or 'lm_head.weight' not in tensors.shapes:
    raise ValueError(
        f'{public.name} has no CTC head (lm_head of Wav2Vec2ForCTC or '
        'HubertForCTC): train a head on its encoder (docs/pretrained.md), or '
        "take a model with one; of Whisper, a folder in CTranslate2's format."
    )
  # A damaged head may have no dimension.
  size = (*tensors.shapes['lm_head.weight'], 0)[0]
  order, tokenizer = _read_vocabulary(folder, size, of=public.name)
  weights = tensor_rules.convert(
      tensors,
      _RULES,
      {
          'head/bias': weights_lib.WeightSpec((size,)),
          'head/kernel': weights_lib.WeightSpec(
              (public.encoder.output_dim, size)
          ),
      },
      # The encoder's, which `hugging_face` checks.
      ignored=re.compile('.*'),
  )
  return CtcHead(
      {name: values[..., order] for name, values in weights.items()}, tokenizer
  )


def _read_vocabulary(
    folder: str, size: int, *, of: str
) -> tuple[list[int], tokenizer_lib.CharTokenizer]:
  """Returns the head's outputs in the tokenizer's order, and the tokenizer."""
  path = os.path.join(folder, hugging_face.VOCABULARY)
  if not os.path.exists(path):
    raise ValueError(f'{path} is missing: outputs have no text. Fetch it.')
  settings = {}
  for name in (hugging_face.SPECIAL_TOKENS, hugging_face.TOKENIZER):
    settings |= _read_optional(os.path.join(folder, name))
  pad = _named(settings, 'pad_token') or _PAD
  delimiter = _named(settings, 'word_delimiter_token') or _DELIMITER
  names = [key for key in settings if re.fullmatch(r'[a-z]+_token', key)]
  special = {pad, *_SPECIAL, *(_named(settings, each) for each in names)}
  special.discard(delimiter)
  tokens = _read_tokens(folder, settings, special, size)
  numbers = {token: number for number, token in tokens.items()}
  for token, role in (
      (pad, 'pad token, which is the blank of CTC'),
      (delimiter, 'word delimiter, so that words cannot be told apart'),
  ):
    if token not in numbers:
      raise ValueError(f'{path} has no {token!r}, the {role}. {_TAKE}')
  config_path = os.path.join(folder, hugging_face.CONFIG)
  trained_blank = hugging_face.read_json(config_path).get('pad_token_id')
  if trained_blank not in (None, numbers[pad]):
    raise ValueError(
        f'{path} has {pad!r} as token {numbers[pad]}, but {config_path} has '
        f'the pad_token_id {trained_blank!r}. Take both files from one model.'
    )
  written = [n for n in sorted(tokens) if tokens[n] not in special]
  silent = [n for n in sorted(tokens) if tokens[n] in special - {pad}]
  texts = [' ' if tokens[n] == delimiter else tokens[n] for n in written]
  if longer := [text for text in texts if len(text) != 1]:
    raise ValueError(
        f'{path} has the token {longer[0]!r}, which is no single character: '
        f'models of phonemes or word pieces are not read. {_TAKE}'
    )
  lowered = [text.lower() for text in texts]
  if len(set(''.join(lowered))) == len(''.join(lowered)) == len(texts):
    texts = lowered
  try:
    tokenizer = tokenizer_lib.CharTokenizer(
        ''.join(texts),
        num_silent=len(silent),
        source=f'the vocabulary of the public model {of}',
    )
  except ValueError as e:
    raise ValueError(f'{path}: {e} {_TAKE}') from None
  return [*written, *silent, numbers[pad]], tokenizer


def _read_tokens(
    folder: str, settings: Mapping[str, object], special: set[str], size: int
) -> dict[int, str]:
  """Returns the tokens by their ids, which are 0 to size - 1."""
  path = os.path.join(folder, hugging_face.VOCABULARY)
  vocabulary = hugging_face.read_json(path)
  if any(isinstance(value, dict) for value in vocabulary.values()):
    raise ValueError(
        f'{path} has a vocabulary for each language, as models with adapters '
        f'by language (MMS, target_lang) do. {_TAKE}'
    )
  added = _read_optional(os.path.join(folder, hugging_face.ADDED_TOKENS))
  decoder = settings.get('added_tokens_decoder')
  if isinstance(decoder, dict):  # Newer files have them here, by id.
    added |= {
        _named(decoder, number): int(number)
        for number in decoder
        if number.isdecimal() and _named(decoder, number)
    }
  if words := sorted(added.keys() - vocabulary.keys() - special):
    raise ValueError(
        f'{folder} adds the token {words[0]!r} to {hugging_face.VOCABULARY}, '
        f'and not as a special one: added words are not read. {_TAKE}'
    )
  # The head cannot write tokens whose ids are past its outputs.
  added = {each: n for each, n in added.items() if n not in range(size, 2**31)}
  tokens = {}
  for token, number in (vocabulary | added).items():
    # A bool is an int in Python.
    if type(number) is not int:  # pylint: disable=unidiomatic-typecheck
      raise ValueError(f'{path}: the id of {token!r} is {number!r}. {_TAKE}')
    if number in tokens:
      raise ValueError(
          f'{path} has the id {number} twice, for {tokens[number]!r} and '
          f'{token!r}. {_TAKE}'
      )
    tokens[number] = token
  if sorted(tokens) != list(range(size)):
    raise ValueError(
        f'{path} must have the ids 0 to {size - 1}, one for each output of '
        f'lm_head; found {len(tokens)} ids up to {max(tokens, default=-1)}. '
        'Take both files from one model.'
    )
  return tokens


def _read_optional(path: str) -> dict[str, object]:
  return hugging_face.read_json(path) if os.path.exists(path) else {}


def _named(settings: Mapping[str, object], key: str) -> str:
  """Returns the token of a setting, or '' if it names none."""
  value = settings.get(key)
  # Older files have the text, newer ones its flags, too.
  if isinstance(value, dict):
    value = value.get('content')
  return value if isinstance(value, str) else ''
