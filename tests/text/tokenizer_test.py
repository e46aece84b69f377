from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.text import tokenizer as tokenizer_lib

_MANY = tokenizer_lib.ENGLISH + 'öäüßœ𝄞'


class CharTokenizerTest(parameterized.TestCase):

  def test_english_has_30_outputs_with_the_blank_last(self):
    tokenizer = tokenizer_lib.CharTokenizer()
    self.assertEqual(tokenizer.vocab_size, 30)
    self.assertEqual(tokenizer.blank_id, 29)

  @parameterized.parameters('', "it's a test-case", 'zz  z', 'öl œuf 𝄞')
  def test_decoding_undoes_encoding(self, text):
    tokenizer = tokenizer_lib.CharTokenizer(_MANY)
    ids = tokenizer.encode(tf.constant([text]))[0]
    self.assertLen(ids, len(text))
    self.assertEqual(tokenizer.decode(ids.numpy()), text)

  @parameterized.parameters('A', 'ä', '𝄞', '\0', '1')
  def test_a_character_that_is_no_token_becomes_minus_1(self, character):
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

  def test_a_boundary_stands_on_both_sides_of_what_is_not_empty(self):
    tokenizer = tokenizer_lib.CharTokenizer('ab ', boundary=' ')
    encode = tf.function(tokenizer.encode)
    self.assertEqual(
        encode(tf.constant(['ab', '', ' ', 'b'])).to_list(),
        [[2, 0, 1, 2], [], [2, 2, 2], [2, 1, 2]],
    )
    self.assertEqual(tokenizer.spell('ab'), ' ab ')
    self.assertEqual(tokenizer.spell(''), '')
    self.assertEqual(tokenizer.decode([2, 0, 1, 2]), ' ab ')
    plain = tokenizer_lib.CharTokenizer('ab ')
    self.assertEqual(plain.encode(tf.constant(['ab'])).to_list(), [[0, 1]])
    for boundary in ('c', 'ab'):
      with self.assertRaisesRegex(ValueError, 'boundary must be .*' + boundary):
        tokenizer_lib.CharTokenizer('ab ', boundary=boundary)

  def test_missing_names_what_is_no_token(self):
    tokenizer = tokenizer_lib.CharTokenizer('ab ')
    self.assertEqual(tokenizer.missing('abba baéz!'), ['!', 'z', 'é'])
    self.assertEqual(tokenizer.missing('ab'), [])
    self.assertEqual(tokenizer.missing(''), [])

  @parameterized.parameters(2, 3, -1, 100)
  def test_decode_refuses_the_blank_and_unknown_ids(self, token):
    with self.assertRaisesRegex(ValueError, f'token id {token} is not one'):
      tokenizer_lib.CharTokenizer('ab').decode([0, token])

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


class ForLanguageTest(absltest.TestCase):

  def test_each_language_has_its_published_characters(self):
    english, french, german = (
        tokenizer_lib.for_language(name).characters
        for name in ('en', 'fr', 'de')
    )
    self.assertEqual(english, " 'abcdefghijklmnopqrstuvwxyz-")
    self.assertEqual(french, english + 'öäüßàâæçéèêëîïôœùûÿ')
    self.assertEqual(german, french)
    self.assertEqual(
        tokenizer_lib.for_language('de', boundary=' ').spell('a'), ' a '
    )
    with self.assertRaisesRegex(ValueError, "language .*'xx'"):
      tokenizer_lib.for_language('xx')
