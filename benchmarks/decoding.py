r"""What a language model costs in evaluation: with it over without it.

Decodes a data set with the model of a run, in turns greedily and also by beam
search with the language model, as `bin/evaluate.py` does (one pass of the
network for both). Time includes reading, features, the network and counting.

Example:
  python -m benchmarks.decoding --run=quickstart_runs/seed \
      --shards=quickstart_data/shards/test --language_model=words.arpa
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

import time

from absl import flags

from benchmarks import report
from tff_asr.data import client_data
from tff_asr.decoding import language_model as language_model_lib
from tff_asr.programs import evaluation
from tff_asr.recognition import recognizer

_RUN = flags.DEFINE_string('run', None, 'Folder of a run that has ended.')
_SHARDS = flags.DEFINE_string('shards', None, 'Folder of shards to decode.')
_LANGUAGE_MODEL = flags.DEFINE_string('language_model', None, 'KenLM model.')
_BEAM_WIDTHS = flags.DEFINE_list('beam_widths', ['32'], 'Prefixes kept.')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Measurements of each.')


def main(_) -> None:
  report.check_json_flag()
  loaded = recognizer.load(run=_RUN.value)
  evaluator = evaluation.Evaluator(
      model=loaded.model,
      pipeline=loaded.pipeline,
      client_data=client_data.load(_SHARDS.value),
  )
  searches = {'greedy': None}
  for width in _BEAM_WIDTHS.value:
    searches[f'beam {width}'] = language_model_lib.BeamSearch(
        language_model_lib.LanguageModel(
            path=_LANGUAGE_MODEL.value, beam_width=int(width)
        ),
        tokens=loaded.pipeline.tokenizer.tokens,
    )
  seconds = {name: [] for name in searches}
  found = {}
  # Traced, and the files in memory.
  evaluator(loaded.weights)
  for _ in range(_REPEATS.value):
    for name, beam_search in searches.items():
      start = time.perf_counter()
      found[name] = evaluator(loaded.weights, beam_search=beam_search)
      seconds[name].append(time.perf_counter() - start)
  ratios = {
      name: [a / b for a, b in zip(values, seconds['greedy'])]
      for name, values in seconds.items()
  }
  field = lambda name: 'text' if name == 'greedy' else 'text_with_lm'
  rates = {
      name: sum(
          each.errors
          for each in evaluated.errors_by_client(field=field(name)).values()
      )
      / evaluated.errors.words
      for name, evaluated in found.items()
  }
  report.write(
      f'Decoding {len(found["greedy"].hypotheses)} utterances',
      [
          ['search', 'seconds', 'over greedy', 'WER %'],
          *(
              [
                  name,
                  report.spread(seconds[name]),
                  report.spread(ratios[name]),
                  f'{100 * rates[name]:.2f}',
              ]
              for name in searches
          ),
      ],
      {'seconds': seconds, 'ratios': ratios, 'word_error_rates': rates},
  )


if __name__ == '__main__':
  flags.mark_flags_as_required(['run', 'shards', 'language_model'])
  launch.run(main)
