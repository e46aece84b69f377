"""Exports a run's model as files, and checks them against the checkpoint.

Files of an export:

  model.safetensors      the run's weights
  model_spec.json        its model, tokens and features, as JSON
  public_model/          files of the public model that it is built on, if any
  saved_model/           waveforms in, text out (`ExportedRecognizer`)
  model.float16.tflite   a waveform in, token ids out: weights in
                         float16, built-in ops only
  tokens.json            the text of each token id
  model_card.md          the model, the checks and its intended use
                         (`reports.model_card`)
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import json
import os
import shutil
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import schema
from tff_asr.features import file_tensor
from tff_asr.features import front_end as front_end_lib
from tff_asr.metrics import word_errors
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.pretrained import public_model
from tff_asr.pretrained import sources
from tff_asr.recognition import model_spec
from tff_asr.recognition import recognizer as recognizer_lib
from tff_asr.storage import run_dir

SAVED_MODEL = 'saved_model'
TOKENS = 'tokens.json'
TFLITE = 'model.float16.tflite'

_BATCH_SIZE = 8
# Rounding may turn a near tie; more differing utterances are a defect.
_MAX_DIFFERENT = 0.02
_NO_TOKEN = -1


class ExportedRecognizer(tf.Module):
  """A model with its weights and tokens; needs core TensorFlow ops only.

  B: batch size. N: samples. U: tokens.
  """

  def __init__(
      self,
      *,
      model: ctc.CtcModel,
      weights: weights_lib.Weights,
      tokens: Sequence[str],
      front_end: front_end_lib.FrontEnd,
  ):
    """Initializes the module.

    Args:
      model: The model.
      weights: Its weights, arrays or tensors by name. The export also holds
        its encoder's frozen tensors.
      tokens: The text of each of its V - 1 token ids.
      front_end: Computes its features; the export holds its weights, too.

    Raises:
      ValueError: The tokens are not those of the model.
    """
    super().__init__()
    if len(tokens) != model.vocab_size - 1:
      raise ValueError(
          f'the model has {model.vocab_size - 1} tokens and a blank, found '
          f'{len(tokens)} tokens.'
      )
    self._model = model
    self._front_end = front_end
    # Variables, so that a SavedModel stores them apart from its graph, which is
    # limited to 2 GB.
    self._weights = _variables(
        {**weights, **_arrays(model.encoder.frozen)}
    )
    self._front_end_weights = _variables(_arrays(front_end.tensors))
    # Lists, because TensorFlow tracks no mapping with `/` in its keys.
    self.variables_in_order = [
        *self._weights.values(), *self._front_end_weights.values()
    ]
    self._tokens = list(tokens)

  @tf.function(
      input_signature=[
          tf.TensorSpec([None, None], tf.int16, name='waveforms'),
          tf.TensorSpec([None], tf.int32, name='num_samples'),
      ],
      autograph=False,
  )
  def transcribe(
      self, waveforms: tf.Tensor, num_samples: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    """Decodes a batch greedily.

    Args:
      waveforms: int16 [B, N], 16 kHz mono, padded with anything.
      num_samples: int32 [B], samples of each utterance, in [0, N].

    Returns:
      text: string [B], UTF-8.
      token_ids: int32 [B, U], -1 past an utterance's tokens.
    """
    # One decoder for both signatures, so that they cannot differ.
    tokens, is_emitted = self._decode(waveforms, num_samples)
    token_ids = tf.ragged.boolean_mask(tokens, is_emitted)
    texts = tf.gather(tf.constant(self._tokens), token_ids)
    # Boundaries are encoded as spaces.
    text = tf.strings.strip(tf.strings.reduce_join(texts, axis=1))
    return {'text': text, 'token_ids': token_ids.to_tensor(_NO_TOKEN)}

  @tf.function(
      # One utterance: TFLite has no ragged tensors.
      input_signature=[tf.TensorSpec([1, None], tf.int16, name='waveform')],
      autograph=False,
  )
  def tokens_of_one(self, waveform: tf.Tensor) -> dict[str, tf.Tensor]:
    """Decodes one utterance with ops that TFLite supports.

    Args:
      waveform: int16 [1, N], 16 kHz mono.

    Returns:
      token_ids: int32 [U].
    """
    num_samples = tf.shape(waveform)[1:]
    tokens, is_emitted = self._decode(waveform, num_samples)
    return {'token_ids': tf.boolean_mask(tokens[0], is_emitted[0])}

  def _decode(
      self, waveforms: tf.Tensor, num_samples: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes features and logits, and decodes them greedily."""
    # TFLite cannot pad int16.
    samples = tf.cast(waveforms, tf.float32)
    # An utterance of a few samples, too, has frames of padding then.
    padding = 2 * max(self._front_end.window, self._front_end.frame_shift)
    padded = tf.pad(samples, [[0, 0], [0, padding]])
    features, lengths = self._front_end.features(
        padded, num_samples, tensors=_values(self._front_end_weights)
    )
    return ctc.best_path(
        *self._model.logits(_values(self._weights), features, lengths)
    )


def _arrays(
    tensors: Mapping[str, file_tensor.FileTensor]
) -> dict[str, np.ndarray]:
  return {name: tensor.numpy() for name, tensor in tensors.items()}


def _variables(
    weights: Mapping[str, tf.types.experimental.TensorLike]
) -> dict[str, tf.Variable]:
  return {
      name: tf.Variable(weights[name], name=name, trainable=False)
      for name in sorted(weights)
  }


def _values(variables: Mapping[str, tf.Variable]) -> dict[str, tf.Tensor]:
  return {name: tf.convert_to_tensor(v) for name, v in variables.items()}


class Utterance(NamedTuple):
  """An utterance that an export is checked on."""

  name: str
  transcript: str
  waveform: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
  """Comparison of an exported model with the checkpoint.

  Attributes:
    file: The export.
    num_bytes: Its size.
    num_utterances: Utterances of the check.
    num_same: Utterances with the same transcript.
    errors: Its word errors.
    checkpoint_errors: The checkpoint's.
  """

  file: str
  num_bytes: int
  num_utterances: int
  num_same: int
  errors: word_errors.WordErrors
  checkpoint_errors: word_errors.WordErrors

  def __str__(self) -> str:
    return (
        f'{self.file}: {self.num_bytes / 1e6:.2f} MB, the same text as the '
        f'checkpoint in {self.num_same} of {self.num_utterances} utterances, '
        f'WER {100 * self.errors.rate:.2f} % (checkpoint '
        f'{100 * self.checkpoint_errors.rate:.2f} %)'
    )


def export(
    *,
    recognizer: recognizer_lib.Recognizer,
    client_data: tff.simulation.datasets.ClientData,
    output_dir: str,
    num_utterances: int = 100,
) -> list[Check]:
  """Writes the exports and checks them.

  Args:
    recognizer: The checkpoint.
    client_data: Speakers; the exports are checked on their utterances.
      Utterances that the recognizer would decode in windows are left out,
      because exports decode whole.
    output_dir: Folder to write to; contains no export yet.
    num_utterances: Number of utterances to check, at least 1.

  Returns:
    The checks of the SavedModel and of the TFLite model.

  Raises:
    ValueError: A folder or the data cannot be used, the model has ops that
      TFLite lacks, or the SavedModel's transcript differs from the
      checkpoint's in more than 2 % of the utterances.
  """
  checks.positive_int(num_utterances=num_utterances)
  checks.output_folders(output_dir=output_dir)
  if os.path.exists(os.path.join(output_dir, SAVED_MODEL)):
    raise ValueError(
        f'{output_dir} contains an export already: use another output_dir.'
    )
  corpus = client_data_lib.corpus_of(client_data)
  if corpus is not None and corpus.features is not None:
    raise ValueError(
        f'{corpus.path} holds features, and an export is checked on audio: '
        'name the corpus of audio.'
    )
  utterances = _read_utterances(
      client_data,
      num_utterances=num_utterances,
      max_samples=recognizer.window_samples,
  )
  tokenizer = recognizer.pipeline.tokenizer
  expected = [
      recognition.text
      for recognition in recognizer((u.name, u.waveform) for u in utterances)
  ]
  check = functools.partial(_check, expected=expected, utterances=utterances)
  # After all checks, so that a refused export leaves no folder.
  os.makedirs(output_dir, exist_ok=True)
  exported = ExportedRecognizer(
      model=recognizer.model,
      weights=recognizer.weights,
      tokens=tokenizer.tokens,
      front_end=recognizer.pipeline.front_end,
  )
  path = os.path.join(output_dir, SAVED_MODEL)
  tf.saved_model.save(
      exported, path, signatures={'serving_default': exported.transcribe}
  )
  saved = check(path, saved_model_texts(path, utterances))
  _check_same(saved, path)
  # The TFLite model may differ more, because its weights are rounded to
  # float16. So its differences are reported only.
  path = os.path.join(output_dir, TFLITE)
  files.write(path, _convert(exported))
  texts = [
      tokenizer.decode(ids).strip() for ids in tflite_tokens(path, utterances)
  ]
  lite = check(path, texts)
  files.write_text(
      os.path.join(output_dir, TOKENS),
      json.dumps(tokenizer.tokens, ensure_ascii=False) + '\n',
  )
  return [saved, lite]


def _check_same(check: Check, path: str) -> None:
  """Raises ValueError if too many transcripts differ."""
  different = check.num_utterances - check.num_same
  if different > _MAX_DIFFERENT * check.num_utterances:
    raise ValueError(
        f'{path} has the same transcript as the checkpoint in only '
        f'{check.num_same} of {check.num_utterances} utterances.'
    )


def copy_model(run: str, *, output_dir: str) -> None:
  """Copies a run's weights, model spec and public model: all to transcribe.

  Also weights of language models, if they were tuned for the run. The model's
  weights keep the head of the privacy ledger. The ledger itself stays with the
  run, so training cannot start from the copy alone.

  Raises:
    ValueError: The run lacks one of the files, or its public model is not
      there any more.
  """
  weights, spec = (
      files.read(run_dir.file_of(run, name))
      for name in (run_dir.MODEL, run_dir.MODEL_SPEC)
  )
  files.write(os.path.join(output_dir, run_dir.MODEL), weights)
  tuned = os.path.join(run, run_dir.DECODING)
  if os.path.exists(tuned):
    files.write(
        os.path.join(output_dir, run_dir.DECODING), files.read(tuned)
    )
  found = files.parse_json(spec)
  # One at most: the head and its front end have the same.
  for name in model_spec.public_models(found):
    public = sources.load(name)
    run_dir.check_public_model(run, public.sha256)
    _copy_public_model(
        public, os.path.join(output_dir, model_spec.PUBLIC_MODEL)
    )
    spec = json.dumps(model_spec.with_bundled(found), indent=1).encode()
  files.write(os.path.join(output_dir, run_dir.MODEL_SPEC), spec)


def _copy_public_model(
    public: public_model.PublicModel, folder: str
) -> None:
  """Copies a public model's files, and says what they are."""
  os.makedirs(folder, exist_ok=True)
  for path in public.files:
    to = os.path.join(folder, os.path.basename(path))
    with files.open_regular(path) as source, files.replacing(to) as copy:
      shutil.copyfileobj(source, copy)
  # In the form in which `public_model.licence_of` reads it again.
  files.write_text(
      os.path.join(folder, 'README.md'),
      f'---\nlicense: {public.licence}\n---\n'
      f'{public.name} ({public.family}), unchanged, from {public.source}.\n'
      f'SHA-256 of its weights: {public.sha256}\n',
  )


def saved_model_texts(
    path: str, utterances: Sequence[Utterance]
) -> list[str]:
  """Transcribes utterances with a SavedModel, through its signature."""
  # Loaded again, as a user of the export does.
  signature = tf.saved_model.load(path).signatures['serving_default']
  texts = []
  # Several at once, so that the check covers padded batches, too.
  for start in range(0, len(utterances), _BATCH_SIZE):
    # Of different lengths: padding must not change a transcript.
    waveforms = [u.waveform for u in utterances[start : start + _BATCH_SIZE]]
    padded = np.zeros([len(waveforms), max(map(len, waveforms))], np.int16)
    for row, waveform in zip(padded, waveforms):
      row[: len(waveform)] = waveform
    outputs = signature(
        waveforms=tf.constant(padded),
        num_samples=tf.constant([len(w) for w in waveforms], tf.int32),
    )
    texts += [text.decode() for text in outputs['text'].numpy()]
  return texts


def tflite_tokens(
    path: str, utterances: Sequence[Utterance]
) -> Iterator[list[int]]:
  """Yields token ids of a TFLite model, through its signature."""
  # Loaded from the file, so that the check covers what is shipped.
  interpreter = tf.lite.Interpreter(model_path=path)
  run = interpreter.get_signature_runner()
  for utterance in utterances:
    yield run(waveform=utterance.waveform[np.newaxis])['token_ids'].tolist()


def _convert(exported: ExportedRecognizer) -> bytes:
  """Converts `ExportedRecognizer.tokens_of_one` to TFLite, in float16."""
  converter = tf.lite.TFLiteConverter.from_concrete_functions(
      [exported.tokens_of_one.get_concrete_function()], exported
  )
  # Only weights: activations stay float32 (`Optimize.DEFAULT` alone would
  # quantize to int8).
  converter.optimizations = [tf.lite.Optimize.DEFAULT]
  converter.target_spec.supported_types = [tf.float16]
  try:
    # The converter raises its own classes of errors.
    return converter.convert()
  except Exception as e:  # pylint: disable=broad-exception-caught
    raise ValueError(
        "the model cannot be converted with TFLite's built-in ops: "
        f'{str(e).strip().splitlines()[0]}'
    ) from e


def _read_utterances(
    client_data: tff.simulation.datasets.ClientData,
    *,
    num_utterances: int,
    max_samples: int,
) -> list[Utterance]:
  """Reads the first utterances that are not too long; ValueError for none."""
  # An export decodes whole what the recognizer would decode in windows.
  short = (
      u for u in _utterances(client_data) if len(u.waveform) <= max_samples
  )
  utterances = list(itertools.islice(short, num_utterances))
  if not utterances:
    raise ValueError(
        'all utterances of the data are longer than the window that the model '
        f'decodes at once, {max_samples / schema.SAMPLE_RATE_HZ:.1f} s: check '
        'the export on other data.'
    )
  return utterances


def _utterances(
    client_data: tff.simulation.datasets.ClientData,
) -> Iterator[Utterance]:
  """Yields the utterances of all clients, sorted by client."""
  # Sorted, so that each export is checked on the same utterances.
  for client_id in sorted(client_data.client_ids):
    for example in client_data.create_tf_dataset_for_client(client_id):
      yield Utterance(
          example[schema.UTTERANCE_ID].numpy().decode(),
          example[schema.TRANSCRIPT].numpy().decode(),
          example[schema.WAVEFORM].numpy(),
      )


def _check(
    path: str,
    texts: Sequence[str],
    *,
    expected: Sequence[str],
    utterances: Sequence[Utterance],
) -> Check:
  """Compares the transcripts of an export with the checkpoint's."""
  total = lambda hypotheses: word_errors.total(
      word_errors.count(utterance.transcript, text)
      for utterance, text in zip(utterances, hypotheses, strict=True)
  )
  return Check(
      file=os.path.basename(path),
      num_bytes=_size(path),
      num_utterances=len(utterances),
      num_same=sum(a == b for a, b in zip(texts, expected, strict=True)),
      errors=total(texts),
      checkpoint_errors=total(expected),
  )


def _size(path: str) -> int:
  """Returns the bytes of a file, or of all files in a folder."""
  if os.path.isfile(path):
    return os.path.getsize(path)
  return sum(
      os.path.getsize(os.path.join(folder, name))
      for folder, _, names in os.walk(path)
      for name in names
  )
