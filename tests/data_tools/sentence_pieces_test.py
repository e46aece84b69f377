"""Tests of data_tools.sentence_pieces."""

import importlib.util
import pathlib
import sys
from unittest import mock

from tests import cases
from tests.bin import in_process
from tff_asr import config
from tff_asr.text import tokenizer

_IS_THERE = importlib.util.find_spec('sentencepiece') is not None
_TEXT = ['The cat sat on the mat.', 'A dog, and a cat, sat!', 'The dogs sit.']


class SentencePiecesTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.text = pathlib.Path(self.path('public.txt'))
    self.text.write_text('\n'.join(20 * _TEXT + ['']), encoding='utf-8')

  def run_it(self, *arguments: str):
    return in_process.run(
        'data_tools.sentence_pieces',
        f'--input={self.text}', f'--output={self.path("pieces.gin")}',
        *arguments,
    )

  def test_the_written_pieces_bind_and_encode_the_text(self):
    if not _IS_THERE:
      self.skipTest('needs the package of requirements-sentencepiece.txt')
    finished = self.run_it('--vocab_size=22')
    self.assertEqual((finished.code, finished.stderr), (0, ''))
    self.assertIn('21 pieces of 60 lines.', finished.stdout)
    bound = config.bind(
        tokenizer.SentencePieceTokenizer, gin_files=[self.path('pieces.gin')]
    )()
    self.assertLen(bound.tokens, 21)
    # Apostrophe and hyphen, as all transcripts can have them.
    self.assertEqual(bound.characters, "'-acdeghimnost ")
    self.assertRegex(
        bound.source, r'trained on 60 lines of public.txt \(SHA-256 \w{16}\)'
    )
    ids = bound.encode(['the cat sat'])[0].numpy()
    self.assertLess(len(ids), len('the cat sat'))
    self.assertEqual(bound.decode(ids), ' the cat sat')
    again = pathlib.Path(self.path('pieces.gin')).read_bytes()
    self.run_it('--vocab_size=22')
    self.assertEqual(
        pathlib.Path(self.path('pieces.gin')).read_bytes(), again
    )

  def test_text_is_kept_on_demand(self):
    if not _IS_THERE:
      self.skipTest('needs the package of requirements-sentencepiece.txt')
    finished = self.run_it('--vocab_size=26', '--text=keep')
    self.assertEqual(finished.code, 0, finished.stderr)
    self.assertIn("'!,.ATacdeghimnost '", finished.stdout)
    finished = self.run_it('--vocab_size=5000')
    self.assertEqual(finished.code, 1)
    self.assertRegex(
        finished.stderr, '^error: --vocab_size=5000 does not go with .+\n$'
    )

  def test_a_missing_package_is_named_with_what_installs_it(self):
    with mock.patch.dict(sys.modules, {'sentencepiece': None}):
      finished = self.run_it()
    self.assertEqual(finished.code, 1)
    self.assertIn('-r requirements-sentencepiece.txt', finished.stderr)
