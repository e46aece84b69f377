"""The side of `transformers` and CTranslate2, in an environment of its own.

    python torch_side.py FOLDER

FOLDER has a folder for each model and `inputs.npz`; results go to
FOLDER/theirs.npz, and the models as `transformers` saves them to
FOLDER/saved/MODEL. Imports nothing of this project.
"""

import json
import os
import sys

import numpy as np
import torch
import transformers


def main(folder: str) -> None:
  """Computes all results."""
  torch.set_num_threads(1)
  inputs = dict(np.load(os.path.join(folder, 'inputs.npz')))
  results = {}
  with open(os.path.join(folder, 'models.json'), encoding='utf-8') as f:
    models = json.load(f)
  for name in models:
    results |= _model(folder, name, inputs)
  with open(os.path.join(folder, 'heads.json'), encoding='utf-8') as f:
    heads = json.load(f)
  for name in heads:
    results |= _ctc(os.path.join(folder, name), name, inputs)
  waveform = inputs['waveform'].astype(np.float32) / 32768
  for num_bins in (80, 128):
    extract = transformers.WhisperFeatureExtractor(feature_size=num_bins)
    found = extract(waveform, sampling_rate=16000, return_tensors='np')
    frames = len(waveform) // 160
    results[f'log_mel/{num_bins}'] = found.input_features[0, :, :frames].T
  extract = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)
  found = extract(waveform, sampling_rate=16000, return_tensors='np')
  results['waveform'] = found.input_values[0]
  if 'ctranslate2' in inputs:
    results |= _ctranslate2(str(inputs['ctranslate2']), inputs)
  np.savez(os.path.join(folder, 'theirs.npz'), **results)


def _model(
    folder: str, name: str, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Outputs of all layers, and gradients by weights and inputs."""
  path = os.path.join(folder, name)
  model, info = transformers.AutoModel.from_pretrained(
      path, output_loading_info=True
  )
  missing = [each for each in info['missing_keys'] if 'decoder' not in each]
  if missing or info['unexpected_keys'] or info['mismatched_keys']:
    raise ValueError(f'{name}: missing {missing}, other {info}')
  model.eval()
  model.save_pretrained(os.path.join(folder, 'saved', name))
  is_whisper = model.config.model_type == 'whisper'
  if not is_whisper:
    # Their gradient is by the kernel, not by its norm and direction.
    torch.nn.utils.parametrize.remove_parametrizations(
        model.encoder.pos_conv_embed.conv, 'weight'
    )
  for parameter in model.parameters():
    parameter.requires_grad_(True)
  results, total = {}, 0
  tensors = []
  for key in sorted(each for each in inputs if each.startswith(f'{name}/in/')):
    utterance = key.rpartition('/')[2]
    # A batch of one, so that there is no padding.
    values = torch.tensor(inputs[key])[None].requires_grad_(True)
    tensors.append((utterance, values))
    if is_whisper:
      found = _whisper(model, values)
    else:
      found = model(values, output_hidden_states=True)
    factors = inputs[f'{name}/factors/{utterance}']
    for layer, hidden in enumerate(found.hidden_states):
      total = total + torch.sum(hidden[0] * torch.tensor(factors[layer]))
      results[f'{name}/outputs/{utterance}/{layer}'] = (
          hidden[0].detach().numpy()
      )
  total.backward()
  for utterance, values in tensors:
    results[f'{name}/input_gradient/{utterance}'] = values.grad[0].numpy()
  for key, parameter in model.named_parameters():
    if parameter.grad is not None:
      results[f'{name}/gradient/{key}'] = parameter.grad.numpy()
  return results


def _ctc(
    path: str, name: str, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Logits and transcripts of a model with a CTC head."""
  model, info = transformers.AutoModelForCTC.from_pretrained(
      path, output_loading_info=True
  )
  if any(info.values()):
    raise ValueError(f'{name}: {info}')
  model.eval()
  tokenizer = transformers.Wav2Vec2CTCTokenizer.from_pretrained(path)

  def text(logits):
    found = tokenizer.decode(logits.argmax(-1))
    for special in ('<s>', '</s>', '<unk>'):
      found = found.replace(special, '')
    return np.array([*map(ord, found.strip().lower())])

  utterances = [
      torch.tensor(inputs[key])
      for key in sorted(inputs) if key.startswith(f'{name}/in/')
  ]
  lengths = [len(each) for each in utterances]
  mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
  batch = torch.nn.utils.rnn.pad_sequence(utterances, batch_first=True)
  # Models with a group norm take padding for silence, whatever the mask.
  has_mask = model.config.feat_extract_norm == 'layer'
  results = {f'{name}/text/any': text(torch.tensor(inputs[f'{name}/any']))}
  with torch.no_grad():
    padded = model(batch, attention_mask=mask).logits
    for index, utterance in enumerate(utterances):
      (logits,) = model(utterance[None]).logits
      results[f'{name}/logits/{index}'] = logits.numpy()
      results[f'{name}/padded_logits/{index}'] = (
          padded[index, : len(logits)] if has_mask else logits
      ).numpy()
      results[f'{name}/text/{index}'] = text(logits)
  return results


def _whisper(model, values):
  """Whisper's encoder on features [1, T, F] with T even."""
  encoder = model.encoder
  # It takes one length only; as if it had been made for this one.
  frames = values.shape[1] // 2
  encoder.config.max_source_positions = frames
  encoder.embed_positions.num_embeddings = frames
  return encoder(values.transpose(1, 2), output_hidden_states=True)


def _ctranslate2(
    folder: str, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Outputs of CTranslate2's encoder."""
  import ctranslate2  # pylint: disable=g-import-not-at-top

  model = ctranslate2.models.Whisper(
      folder, compute_type='float32', intra_threads=1
  )
  results = {}
  for key in inputs:
    if key.startswith('encode/'):
      features = np.ascontiguousarray(inputs[key].T[np.newaxis])
      view = ctranslate2.StorageView.from_array(features)
      results[key] = np.array(model.encode(view))[0]
  return results


if __name__ == '__main__':
  main(sys.argv[1])
