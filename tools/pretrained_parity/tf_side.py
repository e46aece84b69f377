"""This project's side, and the inputs of both."""

from collections.abc import Mapping
import json
import os
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_asr.decoding import greedy
from tff_asr.features import waveform as waveform_lib
from tff_asr.features import whisper_log_mel
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import layers
from tff_asr.models import weights as weights_lib
from tff_asr.pretrained import features as features_lib
from tff_asr.pretrained import hugging_face
from tff_asr.pretrained import public_model
from tff_asr.pretrained import sources
from tff_asr.pretrained import tensor_rules
from tff_asr.recognition import recognizer as recognizer_lib
from tools.pretrained_parity import cases
from tools.pretrained_parity import random_folders

# Frames of the utterances of tiny models with a CTC head.
_CTC_FRAMES = (40, 23)
# Frames of the utterances for CTranslate2: 30 s, 3 s, and an odd number.
_ENCODE_FRAMES = (3000, 300, 339)

# What only the comparison has.
_NOT_EXPECTED = ('saved', 'input_gradient', 'padded_logits')

Results = dict[str, np.ndarray]


class Gradients:
  """Gradients by PyTorch's names; `tensor_rules.Tensors`."""

  path = 'theirs.npz'

  def __init__(self, arrays: Mapping[str, np.ndarray]):
    self._arrays = arrays
    self.shapes = {name: array.shape for name, array in arrays.items()}

  def read(self, name: str) -> np.ndarray:
    return self._arrays[name]


def prepare(
    folder: str,
    models: Mapping[str, random_folders.Config],
    *,
    ctranslate2: Optional[str],
) -> None:
  """Writes models and inputs.

  Args:
    folder: An empty folder.
    models: Configurations by name.
    ctranslate2: Folder of whisper-tiny.en, or None.
  """
  inputs = {'waveform': cases.waveform()}
  for name, config in models.items():
    random_folders.write(os.path.join(folder, name), config)
    encoder = hugging_face.load(os.path.join(folder, name)).encoder
    inputs |= inputs_of(name, config, encoder)
  heads = random_folders.with_heads(models)
  for name, config in heads.items():
    random_folders.write_ctc(os.path.join(folder, name), config)
    inputs |= ctc_inputs_of(name, config)
  if ctranslate2:
    inputs['ctranslate2'] = np.array(ctranslate2)
    for frames in _ENCODE_FRAMES:
      inputs[f'encode/{frames}'] = _features(frames)
  np.savez(os.path.join(folder, 'inputs.npz'), **inputs)
  with open(os.path.join(folder, 'models.json'), 'w', encoding='utf-8') as f:
    json.dump(list(models), f)
  with open(os.path.join(folder, 'heads.json'), 'w', encoding='utf-8') as f:
    json.dump(list(heads), f)


def inputs_of(
    name: str, config: random_folders.Config, encoder: encoder_lib.Encoder
) -> Results:
  """A model's utterances and factors, under its name."""
  depth = config.get('encoder_layers') or config['num_hidden_layers']
  inputs = {}
  for index, utterance in enumerate(cases.utterances(config)):
    shape = (
        depth + 1, encoder.output_lengths(len(utterance)), encoder.output_dim
    )
    inputs[f'{name}/in/{index}'] = utterance
    inputs[f'{name}/factors/{index}'] = cases.factors(shape)
  return inputs


def ctc_inputs_of(name: str, config: random_folders.Config) -> Results:
  """Utterances of a model with a CTC head, and logits to decode."""
  utterances = cases.utterances(config, frames=_CTC_FRAMES)
  # Tiny models emit few tokens: these logits emit all of them.
  shape = (100, len(random_folders.VOCABULARY))
  return {f'{name}/any': cases.normal(shape)} | {
      f'{name}/in/{index}': each for index, each in enumerate(utterances)
  }


def run(folder: str) -> Results:
  """Computes all results of this side."""
  inputs = dict(np.load(os.path.join(folder, 'inputs.npz')))
  with open(os.path.join(folder, 'models.json'), encoding='utf-8') as f:
    models = json.load(f)
  results = {}
  for name in models:
    model = hugging_face.load(os.path.join(folder, name))
    results |= compute(model, name, inputs)
    results |= {
        f'{name}/saved/{key}': value for key, value in model.weights.items()
    }
  with open(os.path.join(folder, 'heads.json'), encoding='utf-8') as f:
    heads = json.load(f)
  os.environ[features_lib.CACHE_VARIABLE] = os.path.join(folder, 'cache')
  for name in heads:
    recognizer = recognizer_lib.load_pretrained(os.path.join(folder, name))
    results |= compute_ctc(recognizer, name, inputs)
  waveforms = tf.constant(inputs['waveform'][np.newaxis])
  num_samples = tf.constant([waveforms.shape[1]])
  for num_bins in cases.MEL_BINS:
    features, _ = whisper_log_mel.whisper_log_mel(
        waveforms, num_samples, num_mel_bins=num_bins
    )
    results[f'log_mel/{num_bins}'] = features[0].numpy()
  features, _ = waveform_lib.waveform(waveforms, num_samples, normalize=True)
  results['waveform'] = features[0].numpy()
  if 'ctranslate2' in inputs:
    model = sources.load('whisper-tiny.en')
    weights = weights_lib.to_tensors(model.weights)
    for key in inputs:
      if key.startswith('encode/'):
        outputs, _ = model.encoder.apply(
            weights,
            tf.constant(inputs[key][np.newaxis]),
            tf.constant([len(inputs[key])]),
            None,
        )
        results[key] = outputs[0].numpy()
  return results


def compute(
    model: public_model.PublicModel, name: str, inputs: Mapping[str, np.ndarray]
) -> Results:
  """Outputs of all layers and gradients, of one padded batch."""
  batch, lengths = _padded(name, inputs)
  weights = weights_lib.to_tensors(model.weights)
  batch = tf.constant(batch)
  results, total = {}, 0.0
  with tf.GradientTape() as tape:
    tape.watch((weights, batch))
    outputs, output_lengths = model.encoder.layer_outputs(
        weights, batch, tf.constant(lengths), None
    )
    valid = layers.length_mask(output_lengths, tf.shape(outputs[0])[1])
    for index, length in enumerate(output_lengths.numpy()):
      factors = inputs[f'{name}/factors/{index}']
      for layer, hidden in enumerate(outputs):
        found = (hidden * valid)[index, :length]
        total += tf.reduce_sum(found * factors[layer])
        results[f'{name}/outputs/{index}/{layer}'] = found.numpy()
  gradients, input_gradient = tape.gradient(total, (weights, batch))
  for index, length in enumerate(lengths):
    results[f'{name}/input_gradient/{index}'] = (
        input_gradient[index, :length].numpy()
    )
  for key, value in gradients.items():
    results[f'{name}/gradient/{key}'] = value.numpy()
  return results


def compute_ctc(
    recognizer: recognizer_lib.Recognizer,
    name: str,
    inputs: Mapping[str, np.ndarray],
) -> Results:
  """Logits in the vocabulary's order, and transcripts, of one padded batch."""
  batch, lengths = _padded(name, inputs)
  logits, logit_lengths = recognizer.model.logits(
      recognizer.weights, tf.constant(batch)[:, :, tf.newaxis],
      tf.constant(lengths),
  )
  tokens = recognizer.pipeline.tokenizer.tokens
  silent = iter(range(tokens.index(''), len(tokens)))
  columns = []
  # Stated here, to check the importer: special tokens are last, but the blank.
  for token in random_folders.VOCABULARY:
    if token == '<pad>':
      columns.append(len(tokens))
    elif len(token) > 1:
      columns.append(next(silent))
    else:
      columns.append(tokens.index(token.replace('|', ' ').lower()))
  decode = lambda found: np.array(
      [*map(ord, greedy.decode(found, tokens=tokens)[0].text)]
  )
  own_order = inputs[f'{name}/any'][:, np.argsort(columns)]
  results = {f'{name}/text/any': decode(own_order)}
  for index, length in enumerate(logit_lengths.numpy()):
    found = logits[index, :length].numpy()
    results[f'{name}/logits/{index}'] = found[:, columns]
    results[f'{name}/padded_logits/{index}'] = found[:, columns]
    results[f'{name}/text/{index}'] = decode(found)
  return results


def _padded(
    name: str, inputs: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, list[int]]:
  """A model's utterances as a batch, and their lengths."""
  keys = sorted(key for key in inputs if key.startswith(f'{name}/in/'))
  utterances = [inputs[key] for key in keys]
  lengths = [len(utterance) for utterance in utterances]
  batch = np.zeros(
      [len(lengths), max(lengths), *utterances[0].shape[1:]], np.float32
  )
  for row, utterance in zip(batch, utterances):
    row[: len(utterance)] = utterance
  # Values that must not matter.
  mask = np.arange(max(lengths)) >= np.array(lengths)[:, np.newaxis]
  batch[mask] = 1e3
  return batch, lengths


def read_theirs(folder: str) -> Results:
  """The other side's results, with gradients by this project's names."""
  found = dict(np.load(os.path.join(folder, 'theirs.npz')))
  with open(os.path.join(folder, 'models.json'), encoding='utf-8') as f:
    models = json.load(f)
  results = {key: found[key] for key in found if '/gradient/' not in key}
  for name in models:
    start = f'{name}/gradient/'
    gradients = Gradients({
        key.removeprefix(start): found[key]
        for key in found if key.startswith(start)
    })
    saved = hugging_face.load(os.path.join(folder, 'saved', name))
    converted = tensor_rules.convert(
        gradients,
        hugging_face.rules(saved.family, saved.encoder.specs),
        saved.encoder.specs,
    )
    for key, value in converted.items():
      results[f'{start}{key}'] = value
    for key, value in saved.weights.items():
      results[f'{name}/saved/{key}'] = value
  return results


def expected(results: Results) -> dict[str, object]:
  """What CI compares with: outputs, front ends and norms of gradients."""
  numbers = {}
  for key, value in results.items():
    if '/gradient/' in key:
      numbers[key] = _round(np.linalg.norm(value))
    elif not any(f'/{each}/' in key for each in _NOT_EXPECTED):
      numbers[key] = np.vectorize(_round, otypes=[float])(value).tolist()
  return numbers


def _round(value: float) -> float:
  return float(f'{value:.7g}')


def _features(frames: int) -> np.ndarray:
  """Whisper's features of speech-like noise."""
  rng = np.random.default_rng(frames)
  time = np.arange(160 * frames) / 16000
  tone = np.sin(2 * np.pi * (200 + 50 * np.sin(3 * time)) * time)
  noise = 0.1 * rng.standard_normal(len(time))
  sound = 3000 * (1 + np.sin(7 * time)) * (tone + noise)
  features, _ = whisper_log_mel.whisper_log_mel(
      tf.constant(sound.astype(np.int16)[np.newaxis]), tf.constant([len(time)])
  )
  return features[0].numpy()
