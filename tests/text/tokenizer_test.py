from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.text import tokenizer as tokenizer_lib

_MANY = tokenizer_lib.ENGLISH + 'öäüßœ𝄞'


class CharTokenizerTest(parameterized.TestCase):

  @parameterized.parameters('', "it's a test-case", 'zz  z', 'öl œuf 𝄞')
  def test_decoding_undoes_encoding(self, text):
    tokenizer = tokenizer_lib.CharTokenizer(_MANY)
    ids = tokenizer.encode(tf.constant([text]))[0]
    self.assertLen(ids, len(text))
    self.assertEqual(tokenizer.decode(ids.numpy()), text)

  @parameterized.parameters('A', 'ä', '𝄞', '\0', '1')
  def test_unknown_characters_become_minus_1(self, character):
    tokenizer = tokenizer_lib.CharTokenizer()
    ids = tokenizer.encode(tf.constant([f'a{character}b']))[0]
    np.testing.assert_array_equal(ids, [2, -1, 3])

  def test_runs_in_a_dataset_with_core_ops_only(self):
    tokenizer = tokenizer_lib.CharTokenizer('ab')
    encode = tf.function(tokenizer.encode).get_concrete_function(
        tf.TensorSpec([None], tf.string)
    )
    encoded = encode(tf.constant(['ab', '', 'bba']))
    self.assertEqual(encoded.dtype, tf.int32)
    self.assertEqual(encoded.to_list(), [[0, 1], [], [1, 1, 0]])
    graph = encode.graph
    # Ops that tensorflow-text brings itself are not among TensorFlow's own.
    foreign = [
        op.type for op in graph.get_operations()
        if not hasattr(tf.raw_ops, op.type)
    ]
    self.assertEmpty(foreign)

  def test_a_boundary_encloses_texts_that_are_not_empty(self):
    tokenizer = tokenizer_lib.CharTokenizer('ab ', boundary=' ')
    encode = tf.function(tokenizer.encode)
    self.assertEqual(
        encode(tf.constant(['ab', '', ' ', 'b'])).to_list(),
        [[2, 0, 1, 2], [], [2, 2, 2], [2, 1, 2]],
    )
    self.assertEqual(tokenizer.decode([2, 0, 1, 2]), ' ab ')
    plain = tokenizer_lib.CharTokenizer('ab ')
    self.assertEqual(plain.encode(tf.constant(['ab'])).to_list(), [[0, 1]])
    for boundary in ('c', 'ab'):
      with self.assertRaisesRegex(ValueError, 'boundary must be .*' + boundary):
        tokenizer_lib.CharTokenizer('ab ', boundary=boundary)

  def test_tokens_without_text_are_written_by_no_one(self):
    tokenizer = tokenizer_lib.CharTokenizer('ab ', num_silent=2)
    self.assertEqual(tokenizer.vocab_size, 6)
    self.assertEqual(tokenizer.encode(['ab']).to_list(), [[0, 1]])
    self.assertEqual(tokenizer.decode([3, 0, 4, 2, 1]), 'a b')
    batch = tokenizer.decode_batch(tf.ragged.constant([[4], [0, 3]]))
    self.assertEqual(batch.numpy().tolist(), [b'', b'a'])
    self.assertEqual(tokenizer.characters, 'ab ')
    self.assertNotEqual(
        tokenizer.identity, tokenizer_lib.CharTokenizer('ab ').identity
    )
    with self.assertRaisesRegex(ValueError, 'num_silent'):
      tokenizer_lib.CharTokenizer('ab ', num_silent=-1)

  def test_missing_returns_unknown_characters(self):
    tokenizer = tokenizer_lib.CharTokenizer('ab ')
    self.assertEqual(tokenizer.missing('abba baéz!'), ['!', 'z', 'é'])
    self.assertEqual(tokenizer.missing('ab'), [])
    self.assertEqual(tokenizer.missing(''), [])

  @parameterized.parameters(2, 3, -1, 100)
  def test_decode_refuses_the_blank_and_unknown_ids(self, token):
    with self.assertRaisesRegex(ValueError, f'token id {token} is not one'):
      tokenizer_lib.CharTokenizer('ab').decode([0, token])

  def test_a_batch_decodes_as_its_texts_do(self):
    texts = ['', 'ab a', ' b']
    for tokenizer in (
        tokenizer_lib.CharTokenizer('ab '),
        tokenizer_lib.SentencePieceTokenizer(_PIECES),
    ):
      ids = tokenizer.encode(tf.constant(texts))
      found = tf.function(tokenizer.decode_batch)(ids).numpy()
      self.assertEqual(
          [text.decode() for text in found],
          [tokenizer.decode(row) for row in ids.to_list()],
      )

  def test_bad_characters_are_named(self):
    with self.assertRaisesRegex(ValueError, 'characters must name at least'):
      tokenizer_lib.CharTokenizer('')
    with self.assertRaisesRegex(ValueError, r"characters has \['a', 'b'\]"):
      tokenizer_lib.CharTokenizer('abcab')
    for control in '\x00\n\x1b\x7f\x9b':
      with self.assertRaisesRegex(ValueError, 'has control characters: '):
        tokenizer_lib.CharTokenizer(f'ab{control}')
    # A joiner of Persian and of Indian scripts is none.
    self.assertEqual(tokenizer_lib.CharTokenizer('a\u200c').vocab_size, 3)


_PIECES = {
    '▁': -3.0, '▁ab': -2.0, 'ab': -2.5, 'a': -4.0, 'b': -4.0, 'ba': -3.5,
}


class SentencePieceTokenizerTest(parameterized.TestCase):

  # By id: 0 'a', 1 'ab', 2 'b', 3 'ba', 4 ' ', 5 ' ab'.
  @parameterized.parameters(
      # -2 for ' ab'; ' ' and 'ab' would be -5.5.
      ('ab', [5]),
      # ' ab' and 'ba', -5.5; ' ab', 'b' and 'a', -10; ' ', 'ab', 'ba', -9.
      ('abba', [5, 3]),
      # ' ', 'ba' -6.5, then ' ab' -2.
      ('ba ab', [4, 3, 5]),
      # ' ', 'b': -7; there is no ' b'.
      ('b', [4, 2]),
      # ' ab', 'ab' -4.5; ' ', 'a', 'ba', 'b' -14.5.
      ('abab', [5, 1]),
      ('', []),
  )
  def test_takes_the_pieces_of_the_largest_sum_of_scores(self, text, ids):
    tokenizer = tokenizer_lib.SentencePieceTokenizer(_PIECES)
    encode = tf.function(tokenizer.encode)
    self.assertEqual(encode(tf.constant([text])).to_list(), [ids])
    self.assertEqual(tokenizer.decode(ids), f' {text}' if text else '')

  def test_outputs_are_the_pieces_and_the_blank(self):
    tokenizer = tokenizer_lib.SentencePieceTokenizer(_PIECES)
    self.assertEqual(tokenizer.vocab_size, 7)
    self.assertEqual(tokenizer.tokens, ('a', 'ab', 'b', 'ba', ' ', ' ab'))

  def test_characters_without_a_piece_become_minus_1_and_are_missing(self):
    tokenizer = tokenizer_lib.SentencePieceTokenizer(_PIECES)
    self.assertEqual(tokenizer.characters, 'ab ')
    self.assertEqual(tokenizer.missing('abc ▁'), ['c', '▁'])
    self.assertEqual(tokenizer.encode(['acb']).to_list(), [[4, 0, -1, 2]])
    self.assertEqual(tokenizer.encode(['a', 'ab']).to_list(), [[4, 0], [5]])

  def test_runs_in_a_dataset(self):
    tokenizer = tokenizer_lib.SentencePieceTokenizer(_PIECES)
    dataset = tf.data.Dataset.from_tensor_slices([['ab'], ['b']])
    encoded = [each.to_list() for each in dataset.map(tokenizer.encode)]
    self.assertEqual(encoded, [[[5]], [[4, 2]]])

  def test_identity_depends_on_pieces_and_scores_but_not_on_their_order(self):
    identity = lambda pieces: (
        tokenizer_lib.SentencePieceTokenizer(pieces).identity
    )
    first = identity(_PIECES)
    self.assertStartsWith(first, '6 sentence pieces ')
    self.assertEqual(identity(dict(reversed(_PIECES.items()))), first)
    self.assertNotEqual(identity(_PIECES | {'ba': -3.6}), first)
    self.assertNotEqual(identity(_PIECES | {'bab': -9.0}), first)

  def test_long_pieces_and_other_scripts(self):
    # More than 127 bytes take two bytes for their length.
    word = 'ñ' * 70
    pieces = {'▁': -1.0, 'ñ': -2.0, word: -3.0, 'ก': -2.0}
    tokenizer = tokenizer_lib.SentencePieceTokenizer(pieces)
    ids = tokenizer.encode([f'{word} กñ'])[0].numpy()
    self.assertLen(ids, 5)
    self.assertEqual(tokenizer.decode(ids), f' {word} กñ')

  @parameterized.parameters(
      ({'a': -1.0, 'abc': -1.0, '▁': -1.0}, r"one for each of \['b', 'c'\]"),
      ({'a': -1.0}, r"one for each of \['▁'\]"),
      ({'a b': -1.0}, "found 'a b'"),
      ({'': -1.0}, "found ''"),
      ({'<unk>': -1.0}, "found '<unk>'"),
      ({'a': 'b'}, "the score of 'a' must be between"),
      ({'a': 1e300}, "the score of 'a' must be between"),
      ({'▁': -1.0, '\x1b': -1.0}, 'pieces has control characters'),
  )
  def test_bad_pieces_are_named(self, pieces, message):
    with self.assertRaisesRegex(ValueError, message):
      tokenizer_lib.SentencePieceTokenizer(pieces)


class ForLanguageTest(absltest.TestCase):

  def test_each_language_has_its_published_characters(self):
    english, french, german = (
        tokenizer_lib.for_language(name).characters
        for name in ('en', 'fr', 'de')
    )
    self.assertEqual(english, " 'abcdefghijklmnopqrstuvwxyz-")
    self.assertEqual(french, english + 'öäüßàâæçéèêëîïôœùûÿ')
    self.assertEqual(german, french)
    bounded = tokenizer_lib.for_language('de', boundary=' ')
    self.assertEqual(bounded.encode(['a']).to_list(), [[0, 2, 0]])
    self.assertIn("published characters of 'de'", bounded.source)
    with self.assertRaisesRegex(ValueError, "language .*'xx'"):
      tokenizer_lib.for_language('xx')
