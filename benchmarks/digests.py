r"""Digests of trained models and of sums, from fixed seeds: a regression check.

    python -m benchmarks.digests --json=before.json
    (change the code)
    python -m benchmarks.digests --json=after.json --compare=before.json

Toy runs: federated without DP on one and on two logical devices, on Ray with
two workers and in TFF's native runtime, federated with DP, central, public
pre-training, and fine-tuning from it. Digests are of each tensor of the final
model. Sums: clipped, and noised under one key, by each query. Bits depend on
machine and thread count: compare digests of one machine only. Exits with 1 if
any differs.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Callable
import functools
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

from absl import flags
import numpy as np
import tensorflow as tf

from benchmarks import toy_runs
from tff_asr.data import cohorts
from tff_asr.execution import multi_device
from tff_asr.execution import native
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import queries
from tff_asr.privacy import strategies
from tff_asr.programs import pretraining
from tff_asr.storage import model_file
from tff_asr.storage import run_dir

_JSON = flags.DEFINE_string('json', None, 'File for the digests.')
_COMPARE = flags.DEFINE_string('compare', None, 'Digests to compare with.')
_CASE = flags.DEFINE_string('case', None, 'One case alone, in this process.')
_FOLDER = flags.DEFINE_string('folder', None, 'Of the runs; for --case.')

_ROUNDS = 3
_STEPS = 6
_KEY = np.arange(1, 9, dtype=np.int32)


def _federated(corpus: str, run: str, *, context=None, noise=0.0) -> None:
  toy_runs.train_federated(
      corpus,
      run,
      num_rounds=_ROUNDS,
      cohort_size=4,
      sample=cohorts.fixed_size,
      noise_multiplier=noise,
      context=context,
  )


def _two_devices(corpus: str, run: str) -> None:
  tf.config.set_logical_device_configuration(
      tf.config.list_physical_devices('CPU')[0],
      [tf.config.LogicalDeviceConfiguration()] * 2,
  )
  settings = multi_device.Settings(devices=['CPU:0', 'CPU:1'])
  _federated(corpus, run, context=multi_device.build_async_context(settings))


def _ray(corpus: str, run: str) -> None:
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_cluster

  settings = ray_cluster.Settings(num_workers=2)
  _federated(corpus, run, context=ray_cluster.build_async_context(settings))


def _native(corpus: str, run: str) -> None:
  # A short run of ours, on data of ours.
  context = native.build_async_context(trust_network=True)
  _federated(corpus, run, context=context)


def _pretrain(corpus: str, run: str) -> None:
  toy_runs.train(
      pretraining.Pretraining, corpus, run, batch_size=2, num_steps=_STEPS
  )


def _fine_tuned(corpus: str, run: str) -> None:
  toy_runs.train_central(
      corpus,
      run,
      num_rounds=_STEPS,
      init_from_run=os.path.join(os.path.dirname(run), _PRETRAINING),
      encoder_rate=0.5,
      encoder_frozen_steps=2,
  )


_ON_RAY, _PRETRAINING = 'federated, Ray, 2 workers', 'public pre-training'
_RUNS: dict[str, Callable[[str, str], None]] = {
    'federated, 1 device': _federated,
    'federated, 2 devices': _two_devices,
    _ON_RAY: _ray,
    'federated, native': _native,
    'federated, noised': functools.partial(_federated, noise=1.0),
    'central': functools.partial(toy_runs.train_central, num_rounds=_STEPS),
    _PRETRAINING: _pretrain,
    'fine-tuning': _fine_tuned,
}


def _digest(array) -> str:
  array = np.asarray(array)
  return hashlib.sha256(
      f'{array.dtype}{array.shape}'.encode() + array.tobytes()
  ).hexdigest()[:16]


def _model(case: str, folder: str) -> dict[str, str]:
  """Trains a case's run and returns digests of its model's tensors."""
  run = os.path.join(folder, case)
  _RUNS[case](os.path.join(folder, 'corpus'), run)
  leaves = model_file.read(os.path.join(run, run_dir.MODEL))
  return {name: _digest(value) for name, value in sorted(leaves.items())}


def _records() -> list[dict[str, tf.Tensor]]:
  generator = np.random.default_rng(1)
  return [
      {
          f'{layer}': tf.constant(
              scale * generator.normal(size=shape), tf.float32
          )
          for layer, shape in (('a', [30, 20]), ('b/c', [7]), ('b/d', [400]))
      }
      for scale in (1.0, 0.001, 30.0)
  ]


def _sums(query) -> dict[str, str]:
  """Digests of three records' clipped sum and of its release."""
  records = _records()
  state = queries.set_noise_key(query.initial_global_state(), _KEY)
  params = query.derive_sample_params(state)
  total = query.initial_sample_state(records[0])
  for record in records:
    total = query.accumulate_record(params, total, record)
  flat = lambda nest: [_digest(leaf) for leaf in tf.nest.flatten(nest)]
  found = {'clipped': flat(total)}
  # Noise that is correlated over rounds shows from the second one on.
  for number in range(1, 4):
    result, state, _ = query.get_noised_result(total, state)
    found[f'noised, round {number}'] = flat(result)
  return found


def _queries() -> dict[str, dict[str, str]]:
  """Digests by query."""
  found = {}
  specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, _records()[0])
  for name, clipping in (
      ('global', clipping_lib.Clipping()),
      ('uniform', clipping_lib.Clipping(split='uniform')),
      ('dim', clipping_lib.Clipping(split='dim')),
      ('dim, rescaled', clipping_lib.Clipping(split='dim', rule='rescale')),
  ):
    found[f'query, {name}'] = _sums(queries.PerLayerClipSumQuery(
        specs,
        l2_norm_clip=1.0, noise_multiplier=0.7, clipping=clipping
    ))
  for name, strategy in (
      ('BLT', strategies.optimize(num_rounds=8, min_sep=2)),
      ('banded', strategies.optimize_banded(num_rounds=8, num_bands=2)),
  ):
    found[f'query, {name}'] = _sums(queries.PerLayerClipSumQuery(
        specs,
        l2_norm_clip=1.0,
        noise_multiplier=0.7,
        noise=correlated_noise.CorrelatedNoise(
            strategy=strategy, min_sep=2
        ),
    ))
  found['query, adaptive'] = _sums(adaptive_query.AdaptiveClipSumQuery(
      specs,
      l2_norm_clip=1.0,
      noise_multiplier=0.7,
      cohort_size=3,
      clipping=clipping_lib.Clipping(split='dim'),
  ))
  return found


def main(_) -> None:
  if _CASE.value:
    with toy_runs.quiet():
      found = (
          _queries()
          if _CASE.value == 'queries'
          else _model(_CASE.value, _FOLDER.value)
      )
    with open(_JSON.value, 'w', encoding='utf-8') as file:
      json.dump(found, file)
    return
  found = {}
  with tempfile.TemporaryDirectory() as folder:
    toy_runs.write_corpus(os.path.join(folder, 'corpus'))
    # One process per case, as the first op fixes the devices of a process.
    for number, case in enumerate([*_RUNS, 'queries']):
      if case == _ON_RAY and importlib.util.find_spec('ray') is None:
        print(f'{case}: not run, Ray is not installed.')
        continue
      path = os.path.join(folder, f'{number}.json')
      subprocess.run(
          [
              sys.executable, '-m', 'benchmarks.digests', f'--case={case}',
              f'--folder={folder}', f'--json={path}',
          ],
          check=True,
      )
      with open(path, encoding='utf-8') as file:
        digests = json.load(file)
      found |= digests if case == 'queries' else {case: digests}
      print(f'{case}: {_summary(digests)}', flush=True)
  if _JSON.value:
    with open(_JSON.value, 'w', encoding='utf-8') as file:
      json.dump(found, file, indent=1, sort_keys=True)
  if _COMPARE.value:
    with open(_COMPARE.value, encoding='utf-8') as file:
      before = json.load(file)
    differing = sorted(
        case
        for case in before.keys() | found.keys()
        if before.get(case) != found.get(case)
    )
    if differing:
      raise ValueError(f'not as in {_COMPARE.value}: {"; ".join(differing)}.')
    print(f'all {len(found)} as in {_COMPARE.value}.')


def _summary(digests) -> str:
  text = json.dumps(digests, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')
