"""Tests of data_tools.ngram."""

import hashlib
import json
import os
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from data_tools import ngram
from tests import cases
from tests import fakes
from tests.bin import in_process
from tests.programs import count_release_test
from tff_asr.data import client_data
from tff_asr.storage import run_dir


def _corpus(folder: str, **settings) -> str:
  return fakes.write_examples(
      folder,
      [*fakes.examples('ann', 4), *fakes.examples('bob', 3)],
      # A shard for each speaker.
      max_shard_bytes=1,
      **settings,
  )


class NGramTest(cases.TestCase):

  def run_it(self, *inputs: str, arguments=('--order=2',)):
    return in_process.run(
        'data_tools.ngram',
        f'--input={",".join(inputs)}', f'--output={self.path("lm.arpa")}',
        *arguments,
    )

  def test_reads_the_transcripts_that_training_reads(self):
    folder = _corpus(self.path('train.public'))
    data = client_data.load(folder)
    expected = [
        example['transcript'].numpy().decode()
        for client in data.client_ids
        for example in data.create_tf_dataset_for_client(client)
    ]
    self.assertLen(expected, 7)
    self.assertEqual([text for _, text in ngram.transcripts(folder)], expected)

  def test_the_first_line_says_which_text_it_was(self):
    folder = _corpus(self.path('train.public'))
    finished = self.run_it(folder)
    self.assertEqual((finished.code, finished.stderr), (0, ''))
    sentences = [text for _, text in ngram.transcripts(folder)]
    self.assertRegex(finished.stdout, '^7 sentences of fake train.public; n-')
    lines = pathlib.Path(self.path('lm.arpa')).read_text().splitlines()
    self.assertEqual(lines[1], '\\data\\')
    self.assertEqual(json.loads(lines[0].removeprefix('# ')), {
        'text': 'fake train.public',
        'text_sha256': hashlib.sha256(
            '\n'.join(sentences).encode()
        ).hexdigest(),
        'num_sentences': 7,
        'order': 2,
    })

  def test_lines_of_text_are_written_as_transcripts_or_kept(self):
    text = self.path('public.txt')
    pathlib.Path(text).write_text('The cat, sat.\n\nA “cat”\n')
    for kind, words in (
        ('normalise', {'the', 'cat', 'sat', 'a'}),
        ('keep', {'The', 'cat,', 'sat.', 'A', '“cat”'}),
    ):
      finished = self.run_it(text, arguments=('--order=2', f'--text={kind}'))
      self.assertRegex(finished.stdout, '^2 sentences of public.txt;')
      unigrams = pathlib.Path(self.path('lm.arpa')).read_text().partition(
          '\\1-grams:\n'
      )[2].partition('\n\n')[0]
      found = {line.split('\t')[1] for line in unigrams.splitlines()}
      self.assertEqual(found, {'<unk>', '<s>', '</s>', *words})

  def test_changes_of_lines_are_counted_as_the_manifest_counts_them(self):
    text = self.path('public.txt')
    pathlib.Path(text).write_text(
        'is 66610, and it\nIS it?Yes\nso (he said)\nIŞIK\n'
    )
    finished = self.run_it(text, arguments=('--order=2', '--casing=tr'))
    self.assertEqual((finished.code, finished.stderr), (0, ''))
    self.assertEqual(finished.stdout.splitlines()[1:], [
        "public.txt: lines had words separated at marks without a space: 1, as"
        " 'IS it?Yes' becomes 'ıs it yes'",
        'public.txt: lines left out, has brackets around what may be said or'
        " not: 1, as 'so (he said)'",
        "public.txt: lines lost digits: 1, as 'is 66610, and it' becomes 'is"
        " and it'",
    ])
    written = pathlib.Path(self.path('lm.arpa')).read_text()
    for word, is_there in (('ışık', 1), ('yes', 1), ('said', 0)):
      self.assertEqual(f'\t{word}' in written, bool(is_there), word)

  def test_texts_are_joined_and_pruned(self):
    text = self.path('public.txt')
    pathlib.Path(text).write_text('one two\none two\none three\n')
    folder = _corpus(self.path('train.public'))
    finished = self.run_it(text, folder, arguments=('--prune=0,1',))
    self.assertRegex(
        finished.stdout, '^10 sentences of public.txt, fake train.public; n-'
    )
    written = pathlib.Path(self.path('lm.arpa')).read_text()
    self.assertIn('\tone two', written)
    self.assertNotIn('\tone three', written)
    self.assertIn('\\3-grams:', written)

  @parameterized.parameters(
      dict(name='private'), dict(origin={'corpus': 'fake', 'part': 'private'})
  )
  def test_private_parts_are_refused(self, name='train', **settings):
    folder = _corpus(self.path(name), **settings)
    finished = self.run_it(folder)
    self.assertEqual(finished.code, 1)
    self.assertRegex(
        finished.stderr, '^error: .+ is the private part of a corpus: .+\n$'
    )
    self.assertFalse(os.path.exists(self.path('lm.arpa')))

  def test_what_cannot_be_read_is_one_line(self):
    folder = _corpus(self.path('train.public'))
    (shard, *_) = sorted(pathlib.Path(folder).glob('*.tfrecord'))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    for inputs, arguments, message in (
        (folder, (), 'has a shard that is damaged'),
        (self.path('none.txt'), (), 'none.txt is missing'),
        (self.root, (), 'contains no corpus.json'),
        (folder, ('--prune=x',), '--prune takes numbers, as 0,0,1; found x'),
        ('', (), '--input is needed'),
    ):
      finished = self.run_it(inputs, arguments=arguments)
      self.assertEqual(finished.code, 1)
      self.assertRegex(finished.stderr, f'^error: .*{message}.*\n$')

  def test_counts_of_a_speaker_s_bigrams(self):
    # Utterances of the same speaker are counted together.
    folder = fakes.write_examples(self.path('train'), [
        fakes.utterance(client, i) | {'transcript': transcript}
        for client, i, transcript in (
            ('ann', 0, 'a b'), ('ann', 1, 'a odd b'), ('bob', 0, 'rare b'),
        )
    ])
    words = ['<unk>', '<s>', '</s>', 'a', 'b']
    found = {
        client: {
            (words[i // 5], words[i % 5]): count
            for i, count in zip(indices, counts)
        }
        for client, indices, counts in ngram.bigram_counts(
            folder, words, vocabulary=[*words, 'rare']
        )
    }
    self.assertEqual(found, {
        'ann': {
            ('<s>', 'a'): 2, ('a', 'b'): 1, ('b', '</s>'): 2,
            ('a', '<unk>'): 1, ('<unk>', 'b'): 1,
        },
        # A known word that is not counted.
        'bob': {('b', '</s>'): 1},
    })

  def test_private_text_enters_by_a_charged_release(self):
    public = _corpus(self.path('train.public'), namespace='public')
    private = fakes.write_split(
        self.path('train.private'), {f'p{i}': 2 for i in range(6)}
    )
    run = count_release_test.finished_run(self.path('run'), private)
    arguments = (
        '--order=2', f'--private_input={private}', f'--run={run}',
        # Nearly no noise.
        '--epsilon=5000', '--allow_not_private',
    )
    finished = self.run_it(public, arguments=arguments)
    self.assertEqual((finished.code, finished.stderr), (0, ''))
    self.assertRegex(
        finished.stdout,
        r'(?s)this one together:\nPrivacy report: .* all 6 speakers in each',
    )
    contents = run_dir.read_ledger(run)
    self.assertEqual(contents.rounds[-1].sampling.kind, 'full')
    text = pathlib.Path(self.path('lm.arpa')).read_text()
    facts = json.loads(text.splitlines()[0].removeprefix('# '))['private']
    self.assertEqual(
        (facts['text'], facts['epsilon'], facts['ledger'][0]),
        ('fake train.private', 5000, 4),
    )
    self.assertStartsWith(facts['verdict'], 'NOT PRIVATE: epsilon is ')
    self.run_it(public)
    public_only = pathlib.Path(self.path('lm.arpa')).read_text()
    self.assertNotEqual(text.splitlines()[1:], public_only.splitlines()[1:])

  def test_private_text_without_its_charge_is_refused(self):
    public = _corpus(self.path('train.public'))
    for arguments, message in (
        (('--private_input=x',), '--private_input, --run and --epsilon; see'),
        (('--run=x', '--epsilon=1'), '--private_input, --run and --epsilon'),
        (
            (f'--private_input={public}', '--run=x', '--epsilon=1'),
            'does not have the clients that x protects',
        ),
    ):
      finished = self.run_it(public, arguments=arguments)
      self.assertEqual(finished.code, 1)
      self.assertRegex(finished.stderr, f'^error: .*{message}.*\n$')


if __name__ == '__main__':
  absltest.main()
