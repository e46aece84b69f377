"""Tests of tff_asr.reports.model_card."""

import dataclasses
import os
import re
import tempfile

from absl.testing import absltest

from tests import fakes
from tests.recognition import recognizers
from tests.reports import run_folders
from tff_asr.data import client_data
from tff_asr.features import front_end as front_end_lib
from tff_asr.metrics import word_errors
from tff_asr.programs import public_data
from tff_asr.recognition import export
from tff_asr.reports import model_card

_CHECK = export.Check(
    file='saved_model',
    num_bytes=1_500_000,
    num_utterances=5,
    num_same=5,
    errors=word_errors.WordErrors(substitutions=4, words=8),
    checkpoint_errors=word_errors.WordErrors(substitutions=2, words=8),
)


class ModelCardTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.shards = fakes.write_split(
        os.path.join(cls.root, 'test'), {'ann': 3, 'bob': 4}
    )
    cls.recognizer = recognizers.tiny()

  def card(self, *, sources=None, recognizer=None, **content) -> str:
    root = self.enterContext(tempfile.TemporaryDirectory())
    run = run_folders.read(
        os.path.join(root, 'my_run'),
        **dict(
            settings={
                'NUM_ROUNDS': '2',
                'PRIVATE_DIR': repr(self.shards),
                'DEV_DIR': "'gone/dev'",
                'INIT_FROM_RUN': "'runs/seed'",
            },
            metrics={'dev_word_error_rate': {1: 0.9, 2: 0.5}},
        )
        | content,
    )
    if sources is not None:
      public_data.write(run.path, sources)
    return model_card.build(
        run, recognizer=recognizer or self.recognizer, exports=[_CHECK],
        data_dir=self.shards,
    )

  def test_the_card_names_a_language_model(self):
    self.assertIn(
        'Characters and sentences: CER 10.0 %, SER 20.0 %. With the language '
        'model words.arpa (order 2, SHA-256 01234567): WER 20.0 %, CER 5.0 %, '
        'SER 10.0 %.',
        self.card(
            privacy=run_folders.privacy(),
            errors={'ann': (4, 10)},
            errors_with_lm={'ann': (2, 10)},
        ),
    )

  def test_the_card_is_filled_in_from_the_run(self):
    card = self.card(
        privacy=run_folders.privacy(epsilon=1234.0),
        errors={'ann': (1, 4), 'bob': (3, 6)},
    )
    self.assertStartsWith(card, '# Model card: my_run\n')
    self.assertIn('2 rounds of federated training', card)
    self.assertIn('from the model of the run `seed`', card)
    self.assertIn('`␣abc`', card)
    self.assertRegex(
        card, r'\| test +\| federated training \(private\) \| 2 +\| not public +\| not '
    )
    self.assertRegex(card, r'\| dev +\| evaluation during training +\| missing')
    self.assertIn('WER 50.0 % at the last', card)
    # 4 of 10 words; speakers 1/4 and 1/2.
    self.assertIn('WER 40.0 % on 10 words of 2 speakers', card)
    self.assertIn('median 37.5 %', card)
    self.assertIn('Characters and sentences: CER 10.0 %, SER 20.0 %.', card)
    self.assertIn('By gender, age or accent: not measured.', card)
    self.assertIn('NOT PRIVATE: epsilon is 1234.0', card)
    self.assertRegex(
        card, r'\| saved_model \| 1.50 \| 5 of 5 +\| 50.0 +\| \+25.0 '
    )
    # The card does not show where files are stored.
    self.assertNotIn(self.root, card)

  def test_the_card_names_the_public_model(self):
    self.assertIn('Log-mel features are computed inside.', self.card())
    public = front_end_lib.PublicSource(
        name='whisper|x', licence='MIT', source='a folder', sha256='1a5a' * 16
    )
    front_end = dataclasses.replace(
        front_end_lib.build_log_mel(), public_model=public
    )
    card = self.card(recognizer=recognizers.tiny(front_end=front_end))
    self.assertIn(
        r'public model whisper\|x (licence MIT, from a folder, SHA-256 '
        f'`{"1a5a" * 16}`)',
        card,
    )
    self.assertNotIn('Log-mel', card)

  def test_amounts_of_data_are_public_without_a_guarantee(self):
    card = self.card(privacy=run_folders.privacy(epsilon='inf'))
    self.assertRegex(card, r'\| test +\| federated training \(private\) \| 2 +\| 7 ')

  def test_data_of_other_programs_are_left_out(self):
    folders = {
        name: repr(self.shards)
        for name in ('PRIVATE_DIR', 'TRAIN_DIR', 'DEV_DIR')
    }
    used = lambda card: re.findall(r'\| test +\| (\w[^|]*\w\)?) +\|', card)
    metrics = {'train_loss': {1: 2.0}}
    for unit, expected in (
        ('NUM_ROUNDS', 'federated training (private)'),
        ('NUM_STEPS', 'training'),
    ):
      card = self.card(settings=folders | {unit: '2'}, metrics=metrics)
      self.assertEqual(used(card), [expected])
    card = self.card(
        settings=folders | {'NUM_STEPS': '2'},
        metrics=metrics | {'dev_loss': {1: 3.0}},
    )
    self.assertEqual(used(card), ['training', 'evaluation during training'])

  def test_of_private_examples_only_their_number_is_public(self):
    settings = {'NUM_STEPS': '2', 'TRAIN_DIR': repr(self.shards)}
    row = lambda privacy: re.findall(
        r'\| training +\| (.*) \|',
        re.sub(' +', ' ', self.card(settings=settings, privacy=privacy)),
    )
    own = run_folders.privacy(epsilon=3.0) | {'privacy_unit': 'example'}
    self.assertEqual(
        row(own | {'rounds': 2, 'inherited_rounds': 0}),
        ['not public | 7 | not public'],
    )
    # Public data, after a seed that was trained with noise.
    (shown,) = row(own | {'rounds': 2, 'inherited_rounds': 2})
    self.assertStartsWith(shown, '2 | 7 | ')

  def test_the_card_has_groups_of_test_speakers(self):
    card = self.card(
        errors={'ann': (1, 4), 'bob': (3, 4), 'cai': (1, 10)},
        attributes={
            'ann': {'accent': 'a|b'},
            'bob': {'accent': 'a|b'},
            'cai': {'accent': 'c'},
        },
    )
    # 4 of 8 words; of either speaker, drawn twice, 1 or 3 of 4.
    self.assertRegex(card, r'accent: a\\\|b +\| 50.0 \(25.0 to 75.0; 2\) \|')
    self.assertRegex(card, r'accent: c +\| 10.0 \(1\) +\|')
    self.assertNotIn('not measured', card)

  def test_metrics_of_private_speakers_are_marked(self):
    data = client_data.load(self.shards)
    sources = [public_data.source(data, is_private=True)]
    warning = 'NOT PRIVATE: 2 of these speakers are private'
    errors = {'ann': (1, 4), 'bob': (3, 6)}
    card = self.card(errors=errors, sources=sources)
    self.assertEqual(card.count(warning), 1)
    self.assertRegex(card, r'## Word errors\n(.*\n)*.*could not be checked')
    counts = public_data.OverlapCounts(2, True)._asdict()
    card = self.card(errors=errors, sources=sources, private=counts)
    self.assertEqual(card.count(warning), 2)
    self.assertNotIn('could not be checked', card)

  def test_texts_of_a_run_are_escaped(self):
    card = self.card(
        settings={
            'NUM_ROUNDS': '2',
            'INIT_FROM_RUN': repr('a`<b>![x](x)'),
            'PRIVATE_DIR': repr('<i>'),
        },
    )
    self.assertIn('the run a`\\<b>![x]\\(x). Log-mel', card)
    self.assertIn('| \\<i> ', card)

  def test_missing_parts_are_named(self):
    card = self.card(settings={'NUM_STEPS': '2'}, metrics={'loss': {1: 2.0}})
    self.assertIn('1 steps of central training', card)
    self.assertIn('has no folder of data', card)
    self.assertIn('No test set: the run was not evaluated', card)
    self.assertIn('NOT PRIVATE: the run has no privacy report', card)

  def test_a_check_prints_one_line(self):
    self.assertRegex(
        str(_CHECK),
        r'^saved_model: 1.50 MB, .* in 5 of 5 utterances, WER 50.00 % '
        r'\(checkpoint 25.00 %\)$',
    )
