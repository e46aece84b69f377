"""The authors' side of the parity table: their own code on given inputs.

    PYTHON tools/parity/jax_side.py AUTHORS FOLDER
    PYTHON tools/parity/jax_side.py process AUTHORS FOLDER RANK PORT
    PYTHON tools/parity/jax_side.py checkpoint MODEL.bin MODEL.npz

PYTHON has the packages of requirements-parity.txt, without TensorFlow;
AUTHORS is a checkout of ml-pfl4asr. The first form reads FOLDER/inputs.{npz,
json}, written by `tf_side`, and writes FOLDER/theirs.{npz,json}; for their
server it starts the second form, once for each of two processes. The third
writes a checkpoint's parameters by name.

Theirs is called as released, with three repairs, without which it does not run:
`jax.tree_map` and optax's `_abs_sq` and `_scale_by_learning_rate` are what
newer releases call otherwise, and AdaGrad's rule is called itself (as released,
`my_adagrad` calls a module).
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import types

import flax
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax

_RNG_KEYS = ['params', 'speech_tr_block', 'dropout', 'cape1d']


def flatten(tree, prefix=''):
  """A nest of mappings as one, names joined by `/`."""
  flat = {}
  for name, value in tree.items():
    if hasattr(value, 'items'):
      flat |= flatten(value, f'{prefix}{name}/')
    else:
      flat[prefix + name] = np.asarray(value)
  return flat


def nest(flat):
  """The reverse of `flatten`."""
  tree = {}
  for name, value in flat.items():
    *path, leaf = name.split('/')
    branch = tree
    for key in path:
      branch = branch.setdefault(key, {})
    branch[leaf] = jnp.asarray(value)
  return tree


def under(prefix, arrays):
  """Arrays under `prefix/`, by the rest of their names."""
  return {
      name[len(prefix) + 1 :]: value
      for name, value in arrays.items()
      if name.startswith(prefix + '/')
  }


def run(authors, folder):
  """Writes their results on the inputs of a folder."""
  arrays, texts = _open(authors, folder)
  found, said = {}, {}
  for measure in (
      _model, _clips, _server, _schedules, _batches, _text, _scores
  ):
    print(f'theirs: {measure.__name__[1:]}', flush=True)
    measure(authors, arrays, texts, found, said)
  found |= _processes(authors, folder, texts['num_processes'])
  np.savez(os.path.join(folder, 'theirs.npz'), **found)
  with open(os.path.join(folder, 'theirs.json'), 'w', encoding='utf-8') as f:
    json.dump(said, f)


def _open(authors, folder):
  """Makes their package importable and returns the inputs."""
  sys.path.insert(0, os.path.join(authors, 'pfl4asr'))
  _repair()
  with open(os.path.join(folder, 'inputs.json'), encoding='utf-8') as f:
    return dict(np.load(os.path.join(folder, 'inputs.npz'))), json.load(f)


def _repair():
  """Restores names that newer releases of jax and optax changed."""
  # pylint: disable=protected-access
  from optax._src import alias
  from optax._src import numerics
  from optax._src import transform

  if not hasattr(jax, 'tree_map'):
    jax.tree_map = jax.tree_util.tree_map
  if not hasattr(jnp, 'float_'):
    jnp.float_ = jnp.float32
  if not hasattr(transform, '_abs_sq'):
    transform._abs_sq = numerics.abs_sq
  if not hasattr(alias, '_scale_by_learning_rate'):
    alias._scale_by_learning_rate = transform.scale_by_learning_rate


def _build(texts, dtype=None):
  """Their tokens, SpecAugment and model, without dropout."""
  from pfl4asr.modules import transformer_block
  from pfl4asr.utils import data
  from pfl4asr.utils import model

  trie = data.construct_eng_char_trie_for_ctc('-')
  settings = texts['model']
  augment, network = model.create_model(
      True,
      transformer_block.ConfigTransformerBlock(
          emb_dim=settings['dim'],
          mlp_dim=settings['mlp_dim'],
          num_heads=settings['num_heads'],
          ln_norm_type='pre',
          dtype=dtype,
      ),
      trie,
      n_blocks=settings['num_blocks'],
  )
  return trie, augment, network


def _model(authors, arrays, texts, found, said):
  """Features, logits, losses, gradients, steps, initial values, decoding."""
  del authors
  from mlx.data import core
  from pfl4asr.utils import data
  from pfl4asr.utils import model as model_lib
  from pfl4asr.utils import optimizer
  from pfl4asr.utils import pfunctions
  from pfl4asr.utils import train

  trie, augment, network = _build(texts, jnp.float32)
  blank = trie.search(data.BLANK_TOKEN).id
  features_of = data.create_mfsc_func()
  ctc, _ = pfunctions.create_ctc_loss_from_logits(blank)
  params = nest(under('weights', arrays))
  keys = lambda: {
      key: jax.random.PRNGKey(i) for i, key in enumerate(_RNG_KEYS)
  }
  apply = lambda net: jax.jit(
      lambda params, x, lengths: net.apply(
          {'params': params}, x, lengths, deterministic=True, rngs=keys()
      )
  )
  waveforms = jnp.asarray(arrays['waveforms'], jnp.float32) / 32768
  num_samples = jnp.asarray(arrays['num_samples'])
  labels = jnp.asarray(arrays['labels'])
  label_lengths = jnp.asarray(arrays['label_lengths'])

  features, lengths = features_of(waveforms, num_samples)
  _by_row(found, 'features', features, lengths)
  logits, output_lengths = apply(network)(params, features, lengths)
  _by_row(found, 'logits/own', logits, output_lengths)
  shared = jnp.asarray(arrays['features'])
  frames = jnp.asarray(arrays['feature_lengths'])
  on_shared, _ = apply(network)(params, shared, frames)
  _by_row(found, 'logits/shared', on_shared, output_lengths)
  # A whole batch's other padding: 15 s.
  more = jnp.pad(waveforms, [[0, 0], [0, 15 * 16000 - waveforms.shape[1]]])
  padded, _ = apply(network)(params, *features_of(more, num_samples))
  for name in ('padded', 'published_padding'):
    _by_row(found, f'logits/{name}', padded, output_lengths)
  given = jnp.asarray(arrays['logits'])
  found['loss/shared'] = ctc(given, output_lengths, labels, label_lengths)
  found['loss/own'] = ctc(logits, output_lengths, labels, label_lengths)
  one = jnp.ones([1], jnp.int32)
  too_long = lambda logits: ctc(logits, 5 * one, labels[:1], 20 * one)
  found['loss/too_long'] = found['kept/loss'] = too_long(given[:1])
  found['kept_gradient'] = jax.grad(too_long)(given[:1])[0, :5]
  rounded, _ = apply(_build(texts, jnp.bfloat16)[2])(params, shared, frames)
  _by_row(found, 'rounded', rounded.astype(jnp.float32), output_lengths)
  valid = np.arange(rounded.shape[1]) < np.asarray(output_lengths)[:, None]
  exact = np.asarray(on_shared)[valid]
  found['bfloat16'] = found['as_rounded'] = np.array(
      np.linalg.norm(np.asarray(rounded, np.float32)[valid] - exact)
      / np.linalg.norm(exact)
  )

  def loss(params):
    logits, lengths = apply(network)(
        params, *features_of(waveforms, num_samples)
    )
    return ctc(logits, lengths, labels, label_lengths)

  gradient = jax.grad(loss)(params)
  found |= {f'gradient/{k}': v for k, v in flatten(gradient).items()}
  local = optimizer.get_optimizer(
      optimizer.ConfigLocalOptimization(optim='sgd', lr=texts['client_rate'])
  )
  _, step = train.create_step_and_eval_funcs(
      network, augment, local, features_of, ctc, _RNG_KEYS
  )
  one_more = flax.jax_utils.replicate
  take = lambda state, anchor=None, mu=None: step(
      *state,
      *map(one_more, (waveforms, num_samples, labels, label_lengths)),
      one_more(jax.random.PRNGKey(0)), anchor, mu, False, False, 1.0, False,
  )[:3]
  state = one_more(params), {}, one_more(local.init(params))
  proximal, *_ = take(state, one_more(params), 0.1)
  found['proximal'] = np.array(np.mean([
      np.isnan(leaf).mean() for leaf in jax.tree_util.tree_leaves(proximal)
  ]))
  for _ in range(3):
    stepped, *_ = state = take(state)
  moved = jax.tree_util.tree_map(
      lambda a, b: a - b, params, flax.jax_utils.unreplicate(stepped)
  )
  found |= {f'steps/{k}': v for k, v in flatten(moved).items()}
  initial = model_lib.init_model(network, _RNG_KEYS, 2, 80, 42)['params']
  for name, value in flatten(initial).items():
    if value.size >= 1000:
      found[f'initial/{name}'] = np.array([value.std(), np.abs(value).max()])

  tokens = np.array(jnp.argmax(given, -1)).astype(np.int64)
  sizes = np.array(output_lengths).astype(np.int64)
  tokens, sizes = core.uniq(tokens, sizes, -1, -1)
  tokens, sizes = core.remove(tokens, sizes, -1, blank, -1)
  said['decoded'] = [
      ''.join(trie.key_string(int(token)) for token in row[:size])
      for row, size in zip(tokens, sizes)
  ]


def _by_row(found, name, values, lengths):
  """The valid frames of each utterance."""
  for i, length in enumerate(np.asarray(lengths)):
    found[f'{name}/{i}'] = np.asarray(values[i, : int(length)])


def _clips(authors, arrays, texts, found, said):
  """Clipped deltas, of one over C and of one under it."""
  del authors, texts, said
  from pfl4asr.utils import pfunctions

  rules = {
      'global': pfunctions.clip_grads,
      'rescale_uniform': pfunctions.clip_layer_grads,
      'rescale_dim': pfunctions.clip_layer_grads_params,
      'clip_uniform': pfunctions.clip_layer_grads,
      'clip_dim': pfunctions.clip_layer_grads_params,
  }
  for size in ('large', 'small'):
    delta = nest(under(f'delta/{size}', arrays))
    for name, rule in rules.items():
      clipped = flatten(rule(delta, 0.01)[0])
      found |= {f'clip/{name}/{size}/{k}': v for k, v in clipped.items()}


def _server(authors, arrays, texts, found, said):
  """Movement over five server steps."""
  del authors, said
  from pfl4asr.utils import adagrad
  from pfl4asr.utils import optimizer

  weights = nest(under('server/weights', arrays))
  for name, rate in texts['server'].items():
    config = optimizer.ConfigServerOptimization(
        # Their comment: epsilon should be 0 for lars.
        optim=name, lr=rate, optim_eps=0.0 if name == 'lars' else 1e-6,
    )
    if name == 'adagrad':
      rule = adagrad.adagrad(rate)
    else:
      rule = optimizer.get_optimizer(config)
    for scale in texts['scales']:
      now, state = weights, rule.init(weights)
      for step in range(5):
        gradient = nest({
            key: value[step] * np.float32(scale)
            for key, value in under('server/gradients', arrays).items()
        })
        updates, state = rule.update(gradient, state, now)
        now = optax.apply_updates(now, updates)
      for key, value in flatten(now).items():
        found[f'server/{name}/{scale}/{key}'] = (
            value - arrays[f'server/weights/{key}']
        )


def _schedules(authors, arrays, texts, found, said):
  """The rates of each released configuration."""
  del arrays, said
  import yaml
  from pfl4asr.utils import optimizer

  for name in texts['schedules']:
    path = os.path.join(authors, 'experiments/configs', f'{name}.yaml')
    with open(path, encoding='utf-8') as f:
      settings = yaml.safe_load(f)['server_optim_config']
    schedule = optimizer.get_lr_schedule(
        optimizer.ConfigServerOptimization(**settings)
    )
    kind = 'central' if name.startswith('central') else 'federated'
    found[f'schedule/{kind}/{name}'] = np.array(
        [float(schedule(step)) for step in texts['steps'][kind]]
    )


def _batches(authors, arrays, texts, found, said):
  """Which utterances of a client share a batch, and how often each comes."""
  del authors, arrays
  from pfl4asr.utils import data

  trie = data.construct_eng_char_trie_for_ctc('-')

  def batches(path, **settings):
    dataset = data.create_dataset(
        path, trie, texts['max_batch_sec'], n_threads=2, target_pad=True,
        # Without a .tar it looks for audio under the wrong name.
        tar=path.replace('.csv', '.tar'),
        batching_buffer_size=64, shuffle_buffer_size=20000, **settings,
    )
    ids = ([bytes(bytearray(row)).decode() for row in batch['id']]
           for batch in dataset)
    return sorted(sorted(each.rstrip('\0') for each in row) for row in ids)

  reader = data.dx
  # Its `repeat(1)` makes two copies: batches of one are compared.
  data.dx = _Without(reader, ['repeat'])
  for client, path in texts['clients'].items():
    said[f'batches/{client}'] = batches(path)
  # Lists of larger clients have copies and order already.
  data.dx = _Without(reader, ['repeat', 'shuffle'])
  for client, path in texts['clients_in_order'].items():
    said[f'batches_in_order/{client}'] = batches(path)
  data.dx = reader
  for client, path in texts['short_clients'].items():
    said[f'released_batches/{client}'] = batches(path)
  path, size = max(texts['cohort'].values(), key=lambda client: client[1])
  found['passes'] = found['published_passes'] = np.array(
      sum(map(len, batches(path, loop_batches=texts['passes']))) / size
  )


class _Without:
  """Wraps mlx.data or its streams; some methods do nothing, once each."""

  def __init__(self, wrapped, methods):
    self._wrapped = wrapped
    self._methods = methods

  def __getattr__(self, name):
    found = getattr(self._wrapped, name)
    if not self._methods or not callable(found):
      return found

    def call(*arguments, **options):
      if name in self._methods:
        left = [each for each in self._methods if each != name]
        return _Without(self._wrapped, left)
      return _Without(found(*arguments, **options), self._methods)

    return call

  def __iter__(self):
    return iter(self._wrapped)


def _processes(authors, folder, num_processes):
  """Starts processes of their server and returns what the first one found."""
  print('theirs: processes', flush=True)
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    port = probe.getsockname()[1]
  started = [
      subprocess.Popen([
          sys.executable, __file__, 'process', authors, folder, str(rank),
          str(port),
      ])
      for rank in range(num_processes)
  ]
  if any([process.wait() for process in started]):
    raise RuntimeError('a process of their server failed.')
  return dict(np.load(os.path.join(folder, 'process.npz')))


def run_process(authors, folder, rank, port):
  """One process of their server: rounds of a cohort with given deltas."""
  arrays, texts = _open(authors, folder)
  from pfl4asr.pfl import data as cohort_data
  from pfl4asr.pfl import server
  from pfl4asr.utils import data
  from pfl4asr.utils import distributed
  from pfl4asr.utils import optimizer

  count, rank = distributed.init_distributed(
      distributed_port=port, world_size=texts['num_processes'], rank=int(rank)
  )
  # Theirs goes on alone where processes do not find each other.
  assert count == texts['num_processes'] == jax.device_count()
  paths = {client: path for client, (path, _) in texts['cohort'].items()}
  sizes = {client: size for client, (_, size) in texts['cohort'].items()}
  # The audio of the largest client holds that of all others.
  archive = paths[max(sizes, key=sizes.get)].replace('.csv', '.tar')
  # Updates of SGD of rate 1 are the mean.
  rule = optimizer.get_optimizer(
      optimizer.ConfigServerOptimization(optim='sgd', lr=1.0)
  )

  def members(**passes_or_steps):
    """This process's clients, by the first batch of each."""
    for dataset in cohort_data.create_dataset_fl(
        paths, sizes, data.construct_eng_char_trie_for_ctc('-'),
        texts['max_batch_sec'], n_threads=1, tar=archive, rank=rank,
        world_size=count, cohort_size=len(paths), **passes_or_steps,
    ):
      _, (client,) = cohort_data.check_clients_in_batch(
          [next(iter(dataset))], None, 'client_id'
      )
      yield client

  def step(deltas, like, sigma=None):
    """How far their server moves."""
    start = jax.tree_util.tree_map(jnp.zeros_like, like)
    rounds = server.Server(
        start, {}, rule, dp_sigma=sigma, num_local_devices=1
    )
    rounds.reset_deltas()
    for delta in deltas:
      rounds.add_deltas(flax.jax_utils.replicate(delta))
    rounds.step(jax.random.PRNGKey(0))
    moved = flax.jax_utils.unreplicate(rounds.current_params())
    return {name: -value for name, value in flatten(moved).items()}

  found = {}
  delta_of = lambda client: nest(under(f'cohort/{client}', arrays))
  like = delta_of(next(iter(paths)))
  for names, settings in (
      (('means', 'equal_means'), dict(local_epochs=texts['passes'])),
      (('means_of_steps',), dict(local_steps=10)),
  ):
    moved = step(map(delta_of, members(**settings)), like)
    found |= {
        f'{name}/{leaf}': value
        for name in names for leaf, value in moved.items()
    }
  nothing = {'noise': jnp.zeros(texts['noise_shape'])}
  noise = step([nothing], nothing, sigma=_released_sigma(authors))['noise']
  found['noise'] = np.std(noise, dtype=np.float64)
  if not rank:
    np.savez(os.path.join(folder, 'process.npz'), **found)


def _released_sigma(authors):
  """The noise of their private configuration."""
  import yaml

  path = os.path.join(authors, 'experiments/configs/pfl_ls_100_to_cv.yaml')
  with open(path, encoding='utf-8') as f:
    return float(yaml.safe_load(f)['dp_config']['dp_sigma'])


def _text(authors, arrays, texts, found, said):
  """Normalised sentences; English ones are transliterated once more.

  The released scripts do so with French and German ones, too.
  """
  del arrays, found
  import unidecode

  path = os.path.join(authors, 'experiments/data/cv/preprocess_latin_text.py')
  with open(path, encoding='utf-8') as f:
    source = f.read().split('\ndst = ')[0]  # What follows reads a corpus.
  names = {}
  sys.modules.setdefault('pandas', types.ModuleType('pandas'))
  here = os.getcwd()
  with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)  # It writes a list of letters.
    try:
      exec(source, names)  # pylint: disable=exec-used
    finally:
      os.chdir(here)
  for name, sentences in texts['sentences'].items():
    normal = [names['process'](sentence).strip() for sentence in sentences]
    if name != 'fr' and name != 'de':
      normal = [unidecode.unidecode(each) for each in normal]
    said[f'text/{name}'] = said[f'published_text/{name}'] = normal
    if name == 'fr' or name == 'de':
      said[f'released_text/{name}'] = [
          unidecode.unidecode(each) for each in normal
      ]
  # Our side has no Unidecode.
  said['unidecode'] = {
      character: unidecode.unidecode(character)
      for sentences in texts['sentences'].values()
      for sentence in sentences
      for character in sentence.lower()
  }


def _scores(authors, arrays, texts, found, said):
  """The word error rate of made-up hypotheses."""
  del authors, arrays, said
  from pfl4asr.utils import eval as scorer

  errors, words, _ = scorer.compute_wer_batched(
      None,
      [f' {reference} ' for reference in texts['references']],
      [f' {hypothesis} ' for hypothesis in texts['hypotheses']],
  )
  found['score/published'] = found['score/standard'] = np.array(errors / words)


if __name__ == '__main__':
  if sys.argv[1] == 'checkpoint':
    with open(sys.argv[2], 'rb') as checkpoint:
      np.savez(
          sys.argv[3],
          **flatten(flax.serialization.msgpack_restore(checkpoint.read())),
      )
  elif sys.argv[1] == 'process':
    run_process(*sys.argv[2:])
  else:
    run(*sys.argv[1:])
