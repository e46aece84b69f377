r"""Serves a local page that transcribes recordings with the models of runs.

RUN is the folder of a run that has ended; --name, once for each in order, is
its name on the page. The page records, or takes a file, and shows each run's
transcript with its errors, its word error rate on test speakers, and its
epsilon. It is served on this computer only, to whoever has the printed address
with its token, and recordings stay in memory. To use it from another computer,
forward its port: ssh -L 8000:127.0.0.1:8000 HOST

Example:
  python bin/demo.py runs/seed runs/private --name=seed --name="federated + DP"
  python bin/demo.py --lm=words.arpa runs/seed runs/private
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from absl import flags

from tff_asr.decoding import language_model as language_model_lib
from tff_asr.recognition import recognizer
from tff_asr.reports import demo
from tff_asr.reports import tables

_PORT = flags.DEFINE_integer(
    'port', 8000, 'Port of 127.0.0.1; 0: any free one.', lower_bound=0,
    upper_bound=65535,
)
_TRUST_CODE = flags.DEFINE_string(
    'trust_code',
    None,
    'Folder of Python modules that models may be built with: they can run any '
    'code.',
)
_LM = flags.DEFINE_string(
    'lm',
    None,
    'KenLM model of public text, .arpa(.gz) or binary, with the weights that '
    'bin/evaluate.py tuned for each run (needs requirements-lm.txt).',
)
_NAMES = flags.DEFINE_multi_string(
    'name', [], 'Name of a run, by default its folder; one for each, in order.'
)
_HOTWORDS = flags.DEFINE_multi_string(
    'hotword', [], 'A word or phrase to prefer; may be repeated.'
)


def main(argv) -> None:
  rows = tables.parse(argv[1:], names=_NAMES.value)
  for row in rows:
    if len(row.runs) > 1:
      raise ValueError(f'{row.label} has several runs: give it one.')
  recognizers = [
      recognizer.load(
          run=row.first.path,
          trust_code=_TRUST_CODE.value,
          language_model=language_model_lib.build(path=_LM.value),
          hotwords=_HOTWORDS.value,
      )
      for row in rows
  ]
  with demo.Server(rows, recognizers, port=_PORT.value) as server:
    print(f'Open {server.url} in a browser; Ctrl-C ends it.', flush=True)
    server.serve_forever()


if __name__ == '__main__':
  launch.run(
      main, arguments='RUN', after_interrupt='the page is served no more.'
  )
