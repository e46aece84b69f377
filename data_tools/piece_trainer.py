"""Trains sentence pieces in a separate process, for `sentence_pieces`.

Reads JSON with vocab_size, characters and sentences; writes JSON with pieces
and scores, or with an error. Loads no TensorFlow: the code of `sentencepiece`,
an extra, is also linked into tensorflow-text, and training next to the other
copy may crash.
"""

import io
import json
import sys


def _train(
    *, sentences: list[str], vocab_size: int, characters: str
) -> list[tuple[str, float]]:
  """Pieces and scores of a unigram model."""
  import sentencepiece  # pylint: disable=g-import-not-at-top

  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(sentences),
      model_writer=model,
      model_type='unigram',
      # Includes the unknown piece; a model has the blank at its index.
      vocab_size=vocab_size,
      character_coverage=1.0,
      required_chars=characters,
      normalization_rule_name='identity',
      bos_id=-1,
      eos_id=-1,
      # The same pieces on each machine.
      num_threads=1,
      minloglevel=2,
  )
  trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
  return [
      (trained.id_to_piece(i), trained.get_score(i))
      for i in range(trained.vocab_size())
      if not trained.is_unknown(i)
  ]


def main() -> None:
  """Reads a request from standard input and writes the result."""
  try:
    result = {'pieces': _train(**json.load(sys.stdin))}
  except RuntimeError as e:
    # `Internal: trainer_interface.cc(661) [condition] Message`.
    result = {'error': str(e).rpartition('] ')[2].strip() or str(e)}
  json.dump(result, sys.stdout)
