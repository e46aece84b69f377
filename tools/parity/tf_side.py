"""Our side of the parity table: the inputs of both sides, and our results."""

import csv
import functools
import json
import os
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from data_tools import text as text_lib
from tff_asr import config
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import process_means
from tff_asr.features import log_mel
from tff_asr.learning import client_update
from tff_asr.metrics import word_errors
from tff_asr.models import ctc
from tff_asr.models import transformer
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import adagrad
from tff_asr.optimizers import adam
from tff_asr.optimizers import lamb
from tff_asr.optimizers import lars
from tff_asr.optimizers import schedules
from tff_asr.privacy import clipping
from tff_asr.privacy import keys
from tff_asr.privacy import queries
from tff_asr.text import tokenizer as tokenizer_lib
from tools.parity import clients
from tools.parity import comparison
from tools.parity import flax_weights

_NUM_UTTERANCES = 8
_SECONDS = 10  # Of the batch: frames mod 3 are 2.
_CLIP = 0.01
_CLIENT_RATE = 0.2
# A cohort of their server: utterances of its clients, which its two processes
# share as {12, 2} and {5, 4, 3, 1}.
_COHORT = (3, 12, 1, 4, 2, 5)
_PROCESSES = 2
_PASSES = 10
# A deviation of this many elements is known to .05 %.
_NOISE_SHAPE = (2048, 1024)
SCALES = (1e-2, 1e-7, 1e-12)
# Rates of the paper's Tables 4 and 9.
SERVER = {
    'lamb': 0.002, 'lars': 0.4, 'adam': 0.006, 'adamw': 0.006, 'adagrad': 0.015,
    'sgd': 1.6,
}
_BUILD_OPTIMIZER = {
    'lamb': lamb.build_lamb,
    'lars': lars.build_lars,
    'adam': adam.build_adam,
    'adamw': functools.partial(adam.build_adam, weight_decay=1e-4),
    'adagrad': adagrad.build_adagrad,
    'sgd': functools.partial(
        tff.learning.optimizers.build_sgdm, momentum=0.0
    ),
}
_CLIPPING = {
    'global': clipping.Clipping(),
    **{
        f'{rule}_{split}': clipping.Clipping(split=split, rule=rule)
        for rule in clipping.RULES
        for split in ('uniform', 'dim')
    },
}
# The authors' configurations, and our files with settings (docs/recipe.md).
_SCHEDULES = {
    'central_baseline_ls': ('ls_central_960',),
    'central_baseline_ls_100': ('ls_central_100',),
    'central_baseline_ls_100_to_860': ('ls_central_860_from_100',),
    'central_baseline_ls_100_to_cv': ('cv_en_central_from_ls',),
    'central_baseline_ls_to_cv': (
        'cv_en_central_from_ls', 'DECAY_START = 150000',
    ),
    'central_baseline_cv_en_to_ls': ('ls_central_960_from_cv_en',),
    'central_baseline_cv_en': ('cv_central',),
    'central_baseline_cv_fr': ('cv_central', 'DECAY_START = 200000'),
    'central_baseline_cv_de': (
        'cv_central', 'LEARNING_RATE = 0.2', 'DECAY_START = 150000',
    ),
    'central_baseline_cv_en_10': ('cv_central_10',),
    'central_baseline_cv_fr_10': ('cv_central_10',),
    'central_baseline_cv_de_10': ('cv_central_10',),
    'central_baseline_cv_en_10_to_90': ('cv_central_90_from_10',),
    'central_baseline_cv_fr_10_to_90': ('cv_central_90_from_10',),
    'central_baseline_cv_de_10_to_90': (
        'cv_central_90_from_10', 'LEARNING_RATE = 0.5', 'DECAY_START = 200000',
    ),
    'fl_cv': ('cv_federated',),
    'fl_ls': ('ls_federated_960',),
    'fl_cv_to_ls': ('ls_federated_from_seed',),
    'fl_ls_100_to_ls_860': ('ls_federated_from_seed',),
    'fl_ls_100_to_cv': ('cv_en_federated_from_ls',),
    'pfl_ls_100_to_cv': ('cv_en_dp_from_ls',),
}
# A sentence for each rule of the text, and cases that no rule covers.
_EDGES = (
    'What? No!', 'a well-known man', 'wait - what -no- yes', 'wait—what – now',
    'and/or', "it's", 'it’s James’ dog', '‘Stop’, he said.', '“Quoted” words',
    'Über Señor naïve', 'Æon', 'Łódź', 'room 5', 'a + b', 'AT&T', 'half a %',
    'tab\there', 'a\u00a0b', '  two  spaces ', 'voila\u0300', 'ﬁne', 'Ελλάδα',
    'x²', '…so', 'e.g. this', '東京',
)


def prepare(folder: str, *, speech: str, model: dict[str, int]) -> None:
  """Writes the inputs of both sides, FOLDER/inputs.{npz,json}.

  Args:
    folder: An empty one.
    speech: Holds LibriSpeech/dev-clean and common_voice/{en,fr,de}.
    model: Arguments of `transformer.build`.
  """
  everything = clients.listen(speech)
  by_client = {
      client: listed[: clients.CHUNK_SIZE]
      for client, listed in everything.items()
  }
  short = [
      each for listed in by_client.values() for each in listed
      if len(each[2]) <= _SECONDS * log_mel.SAMPLE_RATE_HZ
  ][:: max(1, len(by_client))][:_NUM_UTTERANCES]
  waveforms = np.zeros(
      [len(short), _SECONDS * log_mel.SAMPLE_RATE_HZ], np.int16
  )
  for row, (_, _, waveform) in zip(waveforms, short):
    row[: len(waveform)] = waveform
  num_samples = np.array([len(each[2]) for each in short], np.int32)
  labels = _tokenizer().encode([transcript for _, transcript, _ in short])
  features, lengths = log_mel.log_mel(
      tf.constant(waveforms), tf.constant(num_samples)
  )
  weights = _network(model).initialize(tf.constant([1, 2]))
  logits, _ = _network(model).logits(weights, features, lengths)
  random = np.random.default_rng(1)
  # Layers of sizes that differ by up to 100 times, as a client's have.
  delta = {
      name: random.normal(size=value.shape) * 10 ** random.uniform(-2, 0)
      for name, value in weights.items()
  }
  norm = np.sqrt(sum(np.sum(np.square(value)) for value in delta.values()))
  arrays = {
      'waveforms': waveforms,
      'num_samples': num_samples,
      'labels': labels.to_tensor().numpy(),
      'label_lengths': labels.row_lengths().numpy().astype(np.int32),
      'features': features.numpy(),
      'feature_lengths': lengths.numpy(),
      'logits': logits.numpy(),
      **_named('weights', weights),
      **_named('delta/large', delta, 5 * _CLIP / norm),
      **_named('delta/small', delta, 0.5 * _CLIP / norm),
  }
  shapes = dict(matrix=(48, 32), kernel=(7, 8, 16), vector=(32,), one=(1,))
  for name, shape in shapes.items():
    arrays[f'server/weights/{name}'] = random.normal(
        size=shape
    ).astype(np.float32)
    arrays[f'server/gradients/{name}'] = random.normal(
        size=(5, *shape)
    ).astype(np.float32)
  cohort = {f'cohort_{size}': size for size in _COHORT}
  for client in cohort:
    for name, shape in shapes.items():
      arrays[f'cohort/{client}/{name}'] = random.normal(
          size=shape
      ).astype(np.float32)
  np.savez(os.path.join(folder, 'inputs.npz'), **arrays)
  words = [transcript for listed in by_client.values()
           for _, transcript, _ in listed]
  texts = dict(
      model=model,
      client_rate=_CLIENT_RATE,
      max_batch_sec=clients.MAX_BATCH_SEC,
      server=SERVER,
      scales=SCALES,
      schedules=list(_SCHEDULES),
      # Before, at and after each start and period of decay; not step 0, where
      # a warm-up of one step is at 0.
      steps=dict(
          central=_near([1, *range(25_000, 600_001, 5_000)]),
          federated=_near([1, *range(250, 2_001, 250)]),
      ),
      **_write_clients(folder, everything),
      cohort={
          client: [
              clients.write_list(
                  folder, client, next(iter(everything.values()))[:size]
              ),
              size,
          ]
          for client, size in cohort.items()
      },
      num_processes=_PROCESSES,
      passes=_PASSES,
      noise_shape=_NOISE_SHAPE,
      sentences={
          **{name: _sentences(speech, name) for name in ('en', 'fr', 'de')},
          'edges': list(_EDGES),
      },
      references=words,
      hypotheses=[_garble(each, random) for each in words],
  )
  _write_texts(folder, 'inputs', texts)


def run(folder: str) -> None:
  """Writes our results on a folder's inputs, FOLDER/ours.{npz,json}."""
  arrays = dict(np.load(os.path.join(folder, 'inputs.npz')))
  with open(os.path.join(folder, 'inputs.json'), encoding='utf-8') as f:
    texts = json.load(f)
  found: dict[str, Any] = {}
  said: dict[str, Any] = {}
  _measure_model(arrays, texts, found, said)
  _measure_clips(arrays, found)
  _measure_server(arrays, texts, found)
  for name, (file, *params) in _SCHEDULES.items():
    kind = 'central' if name.startswith('central') else 'federated'
    schedule = config.bind(
        schedules.warmup,
        gin_files=[f'gin/experiments/{file}.gin'],
        gin_params=params,
    )()
    found[f'schedule/{kind}/{name}'] = np.array(
        [float(schedule(step)) for step in texts['steps'][kind]]
    )
  _measure_batches(texts, found, said)
  _measure_processes(arrays, texts, found)
  with open(os.path.join(folder, 'theirs.json'), encoding='utf-8') as f:
    unidecode = json.load(f)['unidecode']
  for name, sentences in texts['sentences'].items():
    letters = tokenizer_lib.LETTERS['en' if name == 'edges' else name]
    said[f'text/{name}'] = [
        text_lib.normalize_common_voice(each, letters=letters, dashes='drop')[0]
        for each in sentences
    ]
    published = lambda letters: [
        text_lib.normalize_as_published(
            each, letters=letters, transliterate=unidecode.__getitem__
        )[0]
        for each in sentences
    ]
    said[f'published_text/{name}'] = published(letters)
    if name in ('fr', 'de'):
      said[f'released_text/{name}'] = published(tokenizer_lib.LETTERS['en'])
  errors = [
      word_errors.count(*pair)
      for pair in zip(texts['references'], texts['hypotheses'])
  ]
  found['score/published'] = np.array(word_errors.published_rate(errors))
  found['score/standard'] = np.array(word_errors.total(errors).rate)
  np.savez(os.path.join(folder, 'ours.npz'), **found)
  _write_texts(folder, 'ours', said)


def read(folder: str, side: str) -> dict[str, Any]:
  """The results of a side, 'ours' or 'theirs', by name."""
  with open(os.path.join(folder, f'{side}.json'), encoding='utf-8') as f:
    return dict(np.load(os.path.join(folder, f'{side}.npz'))) | json.load(f)


@functools.cache
def _tokenizer() -> tokenizer_lib.CharTokenizer:
  return tokenizer_lib.CharTokenizer(boundary=' ')


def _network(
    model: dict[str, int], *, head_dtype: str = 'float32', **settings: str
) -> ctc.CtcModel:
  return ctc.build(
      encoder=transformer.build(**model, **settings),
      tokenizer=_tokenizer(),
      head_dtype=head_dtype,
  )


def _named(
    prefix: str, weights: dict[str, Any], scale: float = 1.0
) -> dict[str, np.ndarray]:
  """Weights by the authors' names under a prefix, scaled."""
  flat = flax_weights.flatten(flax_weights.to_flax(weights))
  return {
      f'{prefix}/{name}': (scale * np.asarray(value)).astype(np.float32)
      for name, value in flat.items()
  }


def _measure_model(
    arrays: dict[str, np.ndarray],
    texts: dict[str, Any],
    found: dict[str, Any],
    said: dict[str, Any],
) -> None:
  """Features, logits, losses, gradients, steps, initial values, decoding."""
  model = _network(texts['model'])
  weights = weights_lib.Weights(_from_theirs('weights', arrays))
  weights = weights_lib.to_tensors(weights)
  features, lengths = log_mel.log_mel(
      tf.constant(arrays['waveforms']), tf.constant(arrays['num_samples'])
  )
  labels, label_lengths = arrays['labels'], arrays['label_lengths']
  logits, output_lengths = model.logits(weights, features, lengths)
  _by_row(found, 'features', features, lengths)
  _by_row(found, 'logits/own', logits, output_lengths)
  # No padding changes ours, and so the features of both sides' batches are one.
  _by_row(found, 'logits/shared', logits, output_lengths)
  _by_row(found, 'logits/padded', logits, output_lengths)
  # One more utterance, of 15 s, which makes the batch as long as theirs.
  longest = log_mel.num_frames(15 * log_mel.SAMPLE_RATE_HZ)
  size = longest - tf.shape(features)[1]
  published, _ = _network(texts['model'], front_padding='flax_same').logits(
      weights,
      tf.pad(features, [[0, 1], [0, size], [0, 0]]),
      tf.concat([lengths, [longest]], axis=0),
  )
  _by_row(found, 'logits/published_padding', published, output_lengths)
  valid = tf.sequence_mask(output_lengths, tf.shape(logits)[1])
  for name, settings in (
      ('bfloat16', {}),
      ('as_rounded', dict(rounding='published', head_dtype='bfloat16')),
  ):
    rounded, _ = _network(
        texts['model'], activation_dtype='bfloat16', **settings
    ).logits(weights, features, lengths)
    found[name] = np.array(comparison.relative(
        [rounded.numpy()[valid]], [logits.numpy()[valid]]
    ))
  _by_row(found, 'rounded', rounded, output_lengths)
  given = arrays['logits']
  loss = lambda logits: tf.reduce_mean(
      ctc.loss(logits, output_lengths, labels, label_lengths)
  ).numpy()
  found['loss/shared'], found['loss/own'] = loss(given), loss(logits)
  found['loss/too_long'] = np.array(0.0)  # `pipeline` leaves it out.
  first = tf.constant(given[:1])
  with tf.GradientTape() as tape:
    tape.watch(first)
    kept = ctc.loss(
        first,
        tf.constant([5]),
        tf.constant(labels[:1]),
        tf.constant([20]),
        kernel='optax',
    )
  found['kept/loss'] = kept[0].numpy()
  found['kept_gradient'] = tape.gradient(kept, first).numpy()[0, :5]
  batch = pipeline_lib.Batch(
      example_weights=tf.ones([len(labels)]),
      feature_lengths=lengths,
      features=features,
      label_lengths=tf.constant(label_lengths),
      labels=tf.constant(labels),
      seed=None,
  )
  gradients, _ = client_update.loss_gradients(
      model, weights, batch, num_utterances=float(len(labels))
  )
  found |= _named('gradient', gradients)
  optimizer = _BUILD_OPTIMIZER['sgd'](_CLIENT_RATE)
  state = fresh = optimizer.initialize(weights_lib.tensor_specs(model.specs))
  stepped = weights
  for _ in range(3):
    state, stepped, _ = client_update.step(
        model, optimizer, state, stepped, batch, max_grad_norm=1.0
    )
  found |= _named(
      'steps', {name: weights[name] - stepped[name] for name in weights}
  )
  _, proximal, _ = client_update.step(
      model, optimizer, fresh, weights, batch,
      max_grad_norm=1.0, proximal_weight=0.1, anchor=weights,
  )
  found['proximal'] = np.array(np.mean([
      np.isnan(value).mean() for value in proximal.values()
  ]))
  initial = _named('initial', model.initialize(tf.constant([3, 4])))
  for name, value in initial.items():
    if value.size >= 1000:
      found[name] = np.array([value.std(), np.abs(value).max()])
  tokens = ctc.greedy_decode(tf.constant(given), output_lengths)
  said['decoded'] = [_tokenizer().decode(ids) for ids in tokens.to_list()]


def _from_theirs(
    prefix: str, arrays: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Our weights of the authors' parameters under a prefix."""
  return flax_weights.from_flax({
      name[len(prefix) + 1 :]: value
      for name, value in arrays.items()
      if name.startswith(f'{prefix}/')
  })


def _by_row(found: dict[str, Any], name: str, values, lengths) -> None:
  """The valid frames of each utterance."""
  for i, length in enumerate(np.asarray(lengths)):
    found[f'{name}/{i}'] = np.asarray(values[i, :length])


def _measure_clips(
    arrays: dict[str, np.ndarray], found: dict[str, Any]
) -> None:
  """Clipped deltas, of one over C and of one under it."""
  for size in ('large', 'small'):
    delta = weights_lib.to_tensors(_from_theirs(f'delta/{size}', arrays))
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, delta)
    for name, rule in _CLIPPING.items():
      query = queries.PerLayerClipSumQuery(
          specs, l2_norm_clip=_CLIP, noise_multiplier=0.0, clipping=rule
      )
      state = query.initial_global_state()
      steps = query.preprocess_record(query.derive_sample_params(state), delta)
      clipped, _, _ = query.get_noised_result(steps, state)
      found |= _named(f'clip/{name}/{size}', clipped)


def _measure_server(
    arrays: dict[str, np.ndarray],
    texts: dict[str, Any],
    found: dict[str, Any],
) -> None:
  """Movement over five server steps."""
  part = lambda name: {
      key.rpartition('/')[2]: value
      for key, value in arrays.items()
      if key.startswith(f'server/{name}/')
  }
  start, gradients = part('weights'), part('gradients')
  for name, rate in texts['server'].items():
    optimizer = _BUILD_OPTIMIZER[name](rate)
    next_fn = tf.function(optimizer.next)
    for scale in texts['scales']:
      weights = {key: tf.constant(value) for key, value in start.items()}
      state = tf.nest.map_structure(
          tf.convert_to_tensor,
          optimizer.initialize(
              tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
          ),
      )
      for step in range(5):
        state, weights = next_fn(state, weights, {
            key: tf.constant(value[step] * np.float32(scale))
            for key, value in gradients.items()
        })
      for key, value in weights.items():
        found[f'server/{name}/{scale}/{key}'] = value.numpy() - start[key]


def _write_clients(
    folder: str, by_client: dict[str, list[clients.Utterance]]
) -> dict[str, dict[str, str]]:
  """Paths of lists of clients of several kinds, by kind and client."""
  of_a_chunk, halves, large, in_order = {}, {}, {}, {}
  for client, listed in by_client.items():
    of_a_chunk[client] = clients.write_list(
        folder, client, listed[: clients.CHUNK_SIZE]
    )
    distinct = clients.of_distinct_lengths(listed)
    # Two copies of each fill a chunk.
    halves[client] = clients.write_list(
        folder, f'{client}_half', distinct[: clients.CHUNK_SIZE // 2]
    )
    if len(distinct) <= clients.CHUNK_SIZE:
      continue
    path = large[client] = clients.write_list(
        folder, f'{client}_large', distinct
    )
    by_id = {each.utterance_id: each for each in distinct}
    for repeats in (1, 2):
      in_order[f'{client}/{repeats}'] = clients.write_list(
          folder,
          f'{client}_in_order_{repeats}',
          map(by_id.get, clients.order(path, repeats=repeats)),
      )
  return dict(
      clients=of_a_chunk,
      short_clients=halves,
      large_clients=large,
      clients_in_order=in_order,
  )


def _measure_batches(
    texts: dict[str, Any], found: dict[str, Any], said: dict[str, Any]
) -> None:
  """Which utterances share a batch, and how often each one comes."""
  for client, path in texts['clients'].items():
    said[f'batches/{client}'] = clients.batches(path)
  for client, path in texts['short_clients'].items():
    said[f'released_batches/{client}'] = clients.batches(path, repeats=2)
  for name in texts['clients_in_order']:
    client, _, repeats = name.partition('/')
    said[f'batches_in_order/{name}'] = clients.batches(
        texts['large_clients'][client], repeats=int(repeats)
    )
  path, size = max(texts['cohort'].values(), key=lambda client: client[1])
  count = lambda **settings: np.array(
      sum(map(len, clients.batches(path, **settings))) / size
  )
  found['passes'] = count(num_epochs=texts['passes'])
  # NUM_LOCAL_EPOCHS and repeats of gin/experiments/as_published.gin.
  found['published_passes'] = count(num_epochs=11, repeats=2)


def _measure_processes(
    arrays: dict[str, np.ndarray],
    texts: dict[str, Any],
    found: dict[str, Any],
) -> None:
  """A round's mean over two processes, and the noise that is added to it."""
  sizes = {client: size for client, (_, size) in texts['cohort'].items()}
  weights = process_means.client_weights(
      list(sizes.values()), num_processes=texts['num_processes']
  )
  deltas = {
      name.removeprefix('cohort/').partition('/')[::2]: delta
      for name, delta in arrays.items() if name.startswith('cohort/')
  }
  for leaf in {leaf for _, leaf in deltas}:
    stack = np.stack([deltas[client, leaf] for client in sizes])
    found[f'means/{leaf}'] = np.tensordot(weights, stack, 1) / len(sizes)
    for name in ('equal_means', 'means_of_steps'):
      found[f'{name}/{leaf}'] = np.mean(stack, axis=0)
  gin_files = ['gin/experiments/cv_en_dp_from_ls.gin']
  # sigma_DP 1e-5 of the released configuration, at a cohort of 1,024.
  query = config.bind(
      queries.PerLayerClipSumQuery,
      gin_files=gin_files,
      gin_params=['NOISE_MULTIPLIER = 0.01024'],
  )(record_specs={'noise': tf.TensorSpec(texts['noise_shape'])})
  state = queries.set_noise_key(query.initial_global_state(), keys.draw())
  nothing = query.initial_sample_state(
      {'noise': tf.zeros(texts['noise_shape'])}
  )
  noised, _, _ = query.get_noised_result(nothing, state)
  noise = queries.divide_by_cohort_size(noised, 1024)['noise']
  found['noise'] = np.std(noise.numpy(), dtype=np.float64)


def _sentences(speech: str, language: str) -> list[str]:
  """Sentences of Common Voice as published."""
  path = os.path.join(speech, 'common_voice', language, 'validated.tsv')
  with open(path, encoding='utf-8', newline='') as f:
    rows = csv.DictReader(f, delimiter='\t', quoting=csv.QUOTE_NONE)
    return [row['sentence'] for row in rows]


def _near(numbers: list[int]) -> list[int]:
  """Numbers and their neighbors, from 1 on."""
  return sorted({
      near for number in numbers
      for near in (number - 1, number, number + 1) if near > 0
  })


def _garble(reference: str, random: np.random.Generator) -> str:
  """The reference with words left out, doubled and changed."""
  hypothesis = []
  for word in reference.split():
    hypothesis += [[word], [word], [word], [], [word, word], [word[1:] + 'x']][
        random.integers(6)
    ]
  return ' '.join(hypothesis)


def _write_texts(folder: str, name: str, texts: dict[str, Any]) -> None:
  with open(os.path.join(folder, f'{name}.json'), 'w', encoding='utf-8') as f:
    json.dump(texts, f)
