r"""Exports the model of a run: weights, SavedModel, TFLite, and a model card.

The weights are safetensors, with the model, tokens and features as JSON:
bin/transcribe.py takes the folder as its --run. Each export is checked on real
utterances against the run's own model: the share of equal transcripts, and its
word error rate. The card states both, and the run's data, word errors and
privacy report.

Example:
  python bin/export.py --run=runs/private --output_dir=exported \
      --data=quickstart_data/shards/test
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

import os

from absl import flags

from tff_asr import files
from tff_asr.data import client_data
from tff_asr.recognition import export
from tff_asr.recognition import recognizer as recognizer_lib
from tff_asr.reports import model_card
from tff_asr.reports import runs

_RUN = flags.DEFINE_string(
    'run', None, 'Folder of a run that has ended. Required.'
)
_TRUST_CODE = flags.DEFINE_string(
    'trust_code',
    None,
    'Folder of Python modules that the model may be built with: they can run '
    'any code.',
)
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'Folder for the exports. Required.'
)
_DATA = flags.DEFINE_string(
    'data', None, 'Folder of shards to check the exports on. Required.'
)
_NUM_UTTERANCES = flags.DEFINE_integer(
    'num_utterances', 100, 'Number of utterances to check.', lower_bound=1
)
_EVALUATION = flags.DEFINE_string(
    'evaluation', 'test.json', 'What bin/evaluate.py wrote in the run.'
)
flags.mark_flags_as_required(['run', 'output_dir', 'data'])


def main(_) -> None:
  (run,) = runs.read([_RUN.value], evaluation=_EVALUATION.value)
  data = client_data.load(_DATA.value)
  recognizer = recognizer_lib.load(
      run=_RUN.value, trust_code=_TRUST_CODE.value
  )
  exports = export.export(
      recognizer=recognizer,
      client_data=data,
      output_dir=_OUTPUT_DIR.value,
      num_utterances=_NUM_UTTERANCES.value,
  )
  export.copy_model(_RUN.value, output_dir=_OUTPUT_DIR.value)
  card = model_card.build(
      run, recognizer=recognizer, exports=exports, data_dir=_DATA.value
  )
  files.write_text(os.path.join(_OUTPUT_DIR.value, model_card.CARD), card)
  for each in exports:
    print(each)


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')
