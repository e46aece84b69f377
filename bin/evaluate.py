r"""Decodes a data set with trained models and prints their word error rates.

Example:
  python bin/evaluate.py --gin_file=gin/experiments/quickstart_evaluate.gin \
      --gin_param="RUNS = ['runs/seed', 'runs/federated']"
  python bin/evaluate.py --pretrained=whisper-tiny.en --data=data/test \
      --output_dir=runs/untrained

With --data, a public model is evaluated as it was published, before training.

With --private and gin/programs/private_evaluation.gin as the first file, the
people of TEST_DIR are protected: what is printed has noise, and the run's
privacy ledger is charged (docs/evaluation.md).
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from collections.abc import Sequence
import contextlib
import functools

from absl import flags

import configuration

from tff_asr import config
from tff_asr.data import client_data
from tff_asr.execution import devices
from tff_asr.programs import evaluation
from tff_asr.programs import private_evaluation
from tff_asr.recognition import whisper_decoder
from tff_asr.reports import tables

flags.adopt_module_key_flags(configuration)
_PRIVATE = flags.DEFINE_bool(
    'private',
    False,
    'Evaluate under differential privacy, as set by '
    'gin/programs/private_evaluation.gin.',
)
_DATA = flags.DEFINE_string(
    'data', None, 'Shards to evaluate --pretrained on, as it was published.'
)
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'With --data: folder for test.json; None: not written.'
)
_LANGUAGE = flags.DEFINE_string(
    'language', None, 'With --data: what Whisper takes as spoken; else found.'
)
_NORMALIZATION = flags.DEFINE_list(
    'normalization', ['case', 'punctuation'], 'With --data: as the setting.'
)


def _compare(runs: Sequence[str], evaluation_name: str) -> list[str]:
  """Returns what share of the gain without privacy private runs have."""
  # A share needs three runs; one may be a folder that only has a model.
  with contextlib.suppress(ValueError):
    if len(runs) > 2:
      return tables.shares_of_gain(
          tables.parse(runs, evaluation=evaluation_name)
      )
  return []


def main(_) -> None:
  if _DATA.value is not None:
    name = configuration.published_model()
    evaluation.evaluate_recognizer(
        whisper_decoder.load(name, language=_LANGUAGE.value),
        name=name,
        client_data=client_data.load(_DATA.value),
        rules=_NORMALIZATION.value,
        output_dir=_OUTPUT_DIR.value,
    )
    return
  if any(each.present for each in (_OUTPUT_DIR, _LANGUAGE, _NORMALIZATION)):
    raise ValueError('--output_dir, --language, --normalization need --data.')
  chosen = configuration.from_flags()
  if _PRIVATE.value:
    build = config.bind(private_evaluation.PrivateEvaluation, **chosen)
    launch.run_async(private_evaluation.evaluate(build()))
  else:
    # A core for each of the batches that are decoded at once.
    devices.share_cores()
    evaluate_runs = config.bind(evaluation.evaluate, **chosen)
    evaluate_runs(compare=_compare)


if __name__ == '__main__':
  launch.run(
      main,
      after_interrupt='the same command starts again.',
      more_help=functools.partial(
          config.settings_help, gin_file='gin/programs/evaluate.gin'
      ),
  )
