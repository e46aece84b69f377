r"""Transcribes audio files with the model of a run, or a public one as it is.

Takes WAV, FLAC, MP3, Ogg and other formats of libsndfile or ffmpeg, at any
rate, and folders of them. Recordings longer than --window_sec are decoded in
windows that overlap. Decoding is greedy, as in bin/evaluate.py, or by beam
search with --lm or --hotword. Whisper has a decoder and windows of its own.

Example:
  python bin/transcribe.py --pretrained=whisper-tiny.en recording.wav
  python bin/transcribe.py --run=runs/private --lm=lm.arpa --hotword=tff folder
  python bin/transcribe.py --run=runs/private --format=srt talk.mp3 > talk.srt
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

import sys

from absl import flags

from tff_asr.decoding import language_model
from tff_asr.recognition import recognizer
from tff_asr.recognition import transcription
from tff_asr.recognition import whisper_decoder

_RUN = flags.DEFINE_string('run', None, 'Folder of a run, or of its export.')
_PRETRAINED = flags.DEFINE_string(
    'pretrained', None, 'In place of --run: name or folder of a public model.'
)
_LANGUAGE = flags.DEFINE_string(
    'language', None, 'With --pretrained: what is spoken, as de; else found.'
)
_TRUST_CODE = flags.DEFINE_string(
    'trust_code', None, 'Folder of Python modules for the model: any code runs.'
)
_FORMAT = flags.DEFINE_enum('format', 'text', transcription.FORMATS, 'Output.')
_OUTPUT_DIR = flags.DEFINE_string('output_dir', None, 'Gets a file for each.')
_CHANNEL = flags.DEFINE_string('channel', None, '0, 1 or each; else averaged.')
_WINDOW_SEC = flags.DEFINE_float(
    'window_sec', None, 'Longest piece to decode at once; else as in training.'
)
_LM = flags.DEFINE_string('lm', None, 'KenLM model (requirements-lm.txt).')
_LM_WEIGHT = flags.DEFINE_float('lm_weight', None, 'Of --lm; or as tuned.')
_WORD_BONUS = flags.DEFINE_float('word_bonus', None, 'A word; or as tuned.')
_LM_TEMPERATURE = flags.DEFINE_float('lm_temperature', None, 'Or as tuned.')
_BEAM_WIDTH = flags.DEFINE_integer(
    'beam_width', language_model.BEAM_WIDTH, 'With --lm: prefixes kept.'
)
_HOTWORDS = flags.DEFINE_multi_string('hotword', [], 'Words to prefer.')
_HOTWORD_WEIGHT = flags.DEFINE_float(
    'hotword_weight', language_model.HOTWORD_WEIGHT, 'In nats, of each.'
)
_NUM_BEST = flags.DEFINE_integer(
    'num_best', 1, 'In JSON, with --lm or --hotword.', lower_bound=1
)
flags.mark_flags_as_mutual_exclusive(['run', 'pretrained'], required=True)
flags.mark_flags_as_mutual_exclusive(['run', 'language'])
flags.mark_flags_as_mutual_exclusive(['pretrained', 'trust_code'])


def main(argv) -> None:
  if _NUM_BEST.value > 1 and _FORMAT.value != 'json':
    raise ValueError('--num_best is for --format=json.')
  options = dict(run=_RUN.value, trust_code=_TRUST_CODE.value)
  if not _RUN.value:
    options = dict(name_or_folder=_PRETRAINED.value, language=_LANGUAGE.value)
  loaded = (recognizer if _RUN.value else whisper_decoder).load(
      **options,
      window_sec=_WINDOW_SEC.value,
      language_model=language_model.build(
          path=_LM.value,
          alpha=_LM_WEIGHT.value,
          beta=_WORD_BONUS.value,
          temperature=_LM_TEMPERATURE.value,
          beam_width=_BEAM_WIDTH.value,
      ),
      hotwords=_HOTWORDS.value,
      hotword_weight=_HOTWORD_WEIGHT.value,
      num_best=_NUM_BEST.value,
  )
  try:
    text = transcription.transcribe(
        argv[1:],
        recognizer=loaded, channel=_CHANNEL.value,
        output_format=_FORMAT.value,
        output_dir=_OUTPUT_DIR.value,
    )
  except transcription.UnreadableError as e:
    sys.stdout.write(e.text or '')
    raise
  sys.stdout.write(text or '')


if __name__ == '__main__':
  launch.run(
      main, arguments='FILE', after_interrupt='the same command starts again.'
  )
