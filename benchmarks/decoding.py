r"""Decoding with a language model: its time in evaluation, and confidences.

Decodes a data set with the model of a run, in turns greedily and also by beam
search with the language model, as `bin/evaluate.py` does (one pass of the
network for both). Time includes reading, features, the network and counting.
The time of the processors does not depend on what else they do.

Confidences are judged by the share of pairs of a right and a wrong word in
which the right one has the larger confidence (the area under the ROC curve).

Example:
  python -m benchmarks.decoding --run=quickstart_runs/seed \
      --shards=quickstart_data/shards/test --language_model=words.arpa
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from collections.abc import Sequence
import functools
import time

from absl import flags
import numpy as np

from benchmarks import report
from benchmarks import turns
from tff_asr.data import client_data
from tff_asr.decoding import greedy
from tff_asr.decoding import hypothesis
from tff_asr.decoding import language_model as language_model_lib
from tff_asr.metrics import word_errors
from tff_asr.programs import evaluation
from tff_asr.recognition import recognizer


def judge(
    utterances: Sequence[tuple[str, np.ndarray]], decode: hypothesis.Decode
) -> tuple[float, float]:
  """Judges a decoding: its errors, and whether its confidences rank words.

  Args:
    utterances: Reference and logits float32 [S, V] of each utterance.
    decode: Decodes the logits.

  Returns:
    The word error rate, and the share of pairs of a right and a wrong word in
    which the right one has the larger confidence (a tie counts half; NaN if
    all words are right, or none is).
  """
  errors = word_errors.WordErrors()
  confidences = {True: [], False: []}
  for reference, logits in utterances:
    found = decode(logits)[0]
    errors += word_errors.count(reference, found.text)
    pairs = word_errors.align(reference, found.text)
    words = [pair for pair in pairs if pair.kind != 'delete']
    for pair, word in zip(words, found.words, strict=True):
      confidences[pair.kind == 'equal'].append(word.confidence)
  right, wrong = (np.array(confidences[key]) for key in (True, False))
  above = (right[:, np.newaxis] > wrong) + 0.5 * (right[:, np.newaxis] == wrong)
  return errors.rate, float(above.mean()) if above.size else float('nan')


def main(_) -> None:
  report.check_json_flag()
  loaded = recognizer.load(run=flags.FLAGS.run)
  evaluator = evaluation.Evaluator(
      model=loaded.model,
      pipeline=loaded.pipeline,
      client_data=client_data.load(flags.FLAGS.shards),
  )
  searches = {'greedy': None}
  for width in flags.FLAGS.beam_widths:
    searches[f'beam {width}'] = language_model_lib.BeamSearch(
        language_model_lib.LanguageModel(
            path=flags.FLAGS.language_model, beam_width=int(width)
        ),
        tokens=loaded.pipeline.tokenizer.tokens,
    )
  seconds, cpu_seconds = ({name: [] for name in searches} for _ in range(2))
  # Traced, and the files in memory.
  evaluator(loaded.weights)
  for _ in range(flags.FLAGS.repeats):
    for name, beam_search in searches.items():
      start, cpu_start = time.perf_counter(), time.process_time()
      evaluator(loaded.weights, beam_search=beam_search)
      seconds[name].append(time.perf_counter() - start)
      cpu_seconds[name].append(time.process_time() - cpu_start)
  ratios, cpu_ratios = (
      {
          name: turns.ratios(values, measured['greedy'])
          for name, values in measured.items()
      }
      for measured in (seconds, cpu_seconds)
  )
  rates, areas = {}, {}
  utterances = evaluator.logits(loaded.weights)
  tokens = loaded.pipeline.tokenizer.tokens
  for name, beam_search in searches.items():
    decode = beam_search or functools.partial(greedy.decode, tokens=tokens)
    rates[name], areas[name] = judge(utterances, decode)
  report.write(
      f'Decoding {len(utterances)} utterances',
      [
          [
              'search', 'seconds', 'over greedy', 'CPU seconds over greedy',
              'WER %', 'right above wrong %',
          ],
          *(
              [
                  name,
                  report.spread(seconds[name]),
                  report.spread(ratios[name]),
                  report.spread(cpu_ratios[name]),
                  f'{100 * rates[name]:.2f}',
                  f'{100 * areas[name]:.1f}',
              ]
              for name in searches
          ),
      ],
      {
          'seconds': seconds,
          'ratios': ratios,
          'cpu_ratios': cpu_ratios,
          'word_error_rates': rates,
          'right_above_wrong': areas,
      },
  )


if __name__ == '__main__':
  # Tests import this module beside others with flags of these names.
  flags.DEFINE_string('run', None, 'Folder of a run that has ended.')
  flags.DEFINE_string('shards', None, 'Folder of shards to decode.')
  flags.DEFINE_string('language_model', None, 'KenLM model.')
  flags.DEFINE_list('beam_widths', ['32'], 'Prefixes kept.')
  flags.DEFINE_integer('repeats', 3, 'Measurements of each.')
  flags.mark_flags_as_required(['run', 'shards', 'language_model'])
  launch.run(main)
