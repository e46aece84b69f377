"""Tests of tff_asr.programs.personalization."""

import asyncio
import contextlib
import functools
import io
import json
import tempfile
from unittest import mock

from absl.testing import absltest
import tensorflow as tf

from tests import cases
from tests import fakes
from tests.learning import tiny
from tff_asr.data import client_data as client_data_lib
from tff_asr.execution import multi_device
from tff_asr.learning import client_update
from tff_asr.learning import personalization as adaptation_lib
from tff_asr.programs import personalization
from tff_asr.programs import public_data
from tff_asr.storage import run_dir

_CLIENTS = {'ann': 4, 'bob': 3, 'cai': 1}
_FOLDER = tempfile.TemporaryDirectory()


@functools.lru_cache
def _model():
  return tiny.recognizer()


@functools.lru_cache
def _arguments():
  """What all personalisations of the tests share."""
  return dict(
      model=_model(),
      pipeline=fakes.tiny_pipeline(_model()),
      client_data=client_data_lib.load(
          # Of one word, which a few steps learn.
          fakes.write_split(f'{_FOLDER.name}/shards', _CLIENTS, transcript='a')
      ),
      adaptation=adaptation_lib.Adaptation(
          local=client_update.LocalTraining(learning_rate=4.0, num_steps=60),
          num_utterances=(2, 99, None),
      ),
  )


_build = adaptation_lib.build


@functools.lru_cache
def _computation():
  """Traced once, which takes longer than what it computes."""
  model, pipeline = _arguments()['model'], _arguments()['pipeline']
  return _build(
      **_arguments(),
      measure=adaptation_lib.word_errors(model, pipeline.tokenizer),
  )


class PersonalizeTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    weights = _model().initialize(tf.constant([1, 2]))
    # A model that outputs the letter b.
    weights['head/bias'] = tf.constant([0.0, 0.0, 2.0, 0.0, 0.0])
    self.weights = weights
    self.enter_context(
        mock.patch.object(
            adaptation_lib, 'build', lambda **unused: _computation()
        )
    )
    with run_dir.RunDir(self.path('run'), configuration='') as folder:
      folder.write_model(
          self.weights, tokens=fakes.tiny_tokenizer().identity
      )
    public_data.write(self.path('run'), [])

  def personalize(self, runs=None, **options):
    """Returns the results, and what was printed."""
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(io.StringIO()),
    ):
      results = asyncio.run(
          personalization.personalize(
              runs=[self.path('run')] if runs is None else runs,
              context=multi_device.build_async_context(),
              **_arguments(),
              **options,
          )
      )
    return results, printed.getvalue()

  def test_writes_counts_and_gains_of_people(self):
    (result,), printed = self.personalize()
    with open(self.path('run/personalization.json'), encoding='utf-8') as f:
      self.assertEqual(json.load(f), json.loads(json.dumps(result)))
    people = result['people']
    self.assertEqual([*people], ['ann', 'bob', 'cai'])
    self.assertEqual(
        [each['num_adapted'] for each in people.values()],
        # Half of 4, of 3 (rounded to even) and of 1 are evaluated on.
        [[0, 2, 2, 2], [0, 1, 1, 1], [0, 0, 0, 0]],
    )
    two, many, everything = result['gains']
    self.assertEqual(many, {'num_utterances': 99})
    # Of people who have as many.
    self.assertEqual((two['num_people'], everything['num_people']), (1, 2))
    ann, bob = people['ann'], people['bob']
    self.assertEqual(two['rate_before'], ann['errors'][0] / ann['words'])
    self.assertAlmostEqual(
        everything['rate_after'],
        (ann['errors'][3] + bob['errors'][3]) / (ann['words'] + bob['words']),
    )
    # Before, the model outputs another word than everybody says.
    self.assertEqual((ann['words'], ann['errors'][0]), (2, 2))
    # Each utterance is one word.
    self.assertEqual(ann['wrong_sentences'], ann['errors'])
    self.assertEqual((ann['sentences'], bob['sentences']), (2, bob['words']))
    self.assertEqual(two['sentence_rate_before'], 1.0)
    self.assertEqual(everything['sentence_rate_after'], everything['rate_after'])
    self.assertEqual(everything['sentence_difference']['estimate'],
                     everything['difference']['estimate'])
    self.assertEqual(ann['errors'][3], 0)
    self.assertRegex(
        printed,
        r'run, 2 utterances: WER [\d.]+ to [\d.]+ % \(.* of 1 people.*\n'
        r'.*run, 99 utterances: no person has that many.\n'
        r'.*run, all utterances: WER .* of 2 people, worst tenth .* %; better '
        r'for \d+ %, worse for \d+ %\n',
    )
    self.assertNotIn('PRIVATE', printed)

  def test_calls_take_a_part_of_the_clients_each(self):
    (expected,), _ = self.personalize()
    with mock.patch.object(personalization, '_CLIENTS_PER_CALL', 2):
      (found,), _ = self.personalize()
    self.assertEqual(found['people'], expected['people'])

  def test_exact_rates_of_private_people_need_consent(self):
    data = _arguments()['client_data']
    public_data.write(
        self.path('run'),
        [public_data.source(data.select(['ann']), is_private=True)],
    )
    # That source is of a corpus that has more clients: it cannot be compared.
    self.personalize(output_name='other.json')
    public_data.write(
        self.path('run'), [public_data.source(data, is_private=True)]
    )
    with self.assertRaisesRegex(
        ValueError, '3 of these speakers are private.*EXACT_METRICS = True'
    ):
      self.personalize()
    (result,), printed = self.personalize(exact_metrics=True)
    self.assertEqual(result['private']['private_speakers'], 3)
    self.assertIn('run: NOT PRIVATE: 3 of these speakers', printed)

  def test_bad_arguments_are_refused_together(self):
    with self.assertRaisesRegex(ValueError, 'runs must be a list'):
      self.personalize(runs=self.path('run'))
    with self.assertRaisesRegex(ValueError, 'output_name must be'):
      self.personalize(output_name='../x')
    with self.assertRaisesRegex(ValueError, 'contains no trained model'):
      self.personalize(runs=[self.path('nothing')])


if __name__ == '__main__':
  absltest.main()
