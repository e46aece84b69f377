"""Tests of tff_asr.programs.lm_tuning."""

import json
import os
import pathlib

import numpy as np

from tests import cases
from tests import fakes
from tests.decoding import language_model_test
from tff_asr.data import client_data as client_data_lib
from tff_asr.decoding import language_model as language_model_lib
from tff_asr.programs import lm_tuning
from tff_asr.programs import public_data


def _a_then_c_rather_than_b(nats: float) -> np.ndarray:
  """Logits of 'ac', where 'ab' is less likely by some nats."""
  logits = np.full([2, 5], -20.0, np.float32)
  logits[0, 1] = 0.0
  logits[1, 2:4] = (-nats, 0.0)
  return logits


class LmTuningTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.path_ = self.path('words.arpa')
    pathlib.Path(self.path_).write_text(language_model_test.ARPA)
    self.run_ = self.path('run')
    os.makedirs(self.run_)
    public_data.write(self.run_, [])
    self.dev = client_data_lib.load(
        fakes.write_split(self.path('dev'), {'ann': 1, 'bob': 2})
    )

  def model(self, **settings) -> language_model_lib.LanguageModel:
    return language_model_lib.LanguageModel(path=self.path_, **settings)

  def tune(self, *decoded: tuple[str, np.ndarray]):
    search = language_model_lib.BeamSearch(self.model(), tokens=' abc')
    found = lm_tuning.tune(
        self.run_, dev_data=self.dev, decoded=decoded, beam_search=search
    )
    return found, search

  @language_model_test.needs_packages
  def test_the_weights_with_the_fewest_errors_are_kept(self):
    # 'a', then 'c' rather than 'b' by 3.9 nats. ln p('ab') - ln p('ac') is
    # 2 ln 10 = 4.6: at weight .75 (3.5) 'ac' wins still, at 1 (4.6) 'ab'.
    logits = _a_then_c_rather_than_b(3.9)
    found, search = self.tune(*[('ab', logits)] * 2)
    self.assertEqual(
        (found['alpha'], found['beta'], found['temperature']), (1.0, 1.5, 1.0)
    )
    self.assertEqual(search.weights, (1.0, 1.5, 1.0))
    self.assertEqual(search(logits)[0].text, 'ab')
    self.assertEqual(found['num_dev_speakers'], 2)
    self.assertEqual(found['num_dev_words'], 2)
    rates = found['dev_word_error_rates']
    # A temperature and a weight, then other bonuses with the chosen ones.
    self.assertLen(
        rates,
        len(lm_tuning.TEMPERATURES) * len(lm_tuning.ALPHAS)
        + len(lm_tuning.BETAS) - 1,
    )
    for alpha, _, temperature, rate in rates:
      # Logits of -3.9 become -3.1 at 1.25 and -1.95 at 2.
      wins = 2 * np.log(10) * alpha > 3.9 / temperature
      self.assertEqual(rate, float(not wins), (alpha, temperature))
    # Kept in the run, for this model only.
    tuned = lm_tuning.tuned(self.run_, self.model())
    self.assertEqual(tuned.weights, (1.0, 1.5, 1.0))
    given = lm_tuning.tuned(self.run_, self.model(alpha=0.1))
    self.assertEqual(given.weights, (0.1, 1.5, 1.0))
    pathlib.Path(self.path_).write_text(language_model_test.ARPA + '\n')
    other = lm_tuning.tuned(self.run_, self.model())
    self.assertEqual(other.weights, (None, None, None))
    # A second model leaves the first one's weights.
    self.tune(('ac', logits))
    self.assertLen(lm_tuning.read(self.run_), 2)
    # Of equal rates the defaults count.
    tuned = lm_tuning.tuned(self.run_, self.model())
    self.assertEqual(tuned.weights, (0.5, 1.5, 1.0))

  @language_model_test.needs_packages
  def test_a_model_that_is_too_sure_gets_a_temperature(self):
    # 'b' is not searched below -5: only -6 / 1.5 = -4, which 4.6 outweighs.
    logits = _a_then_c_rather_than_b(6.0)
    found, search = self.tune(*[('ab', logits)] * 2)
    self.assertEqual(search.weights, (1.0, 1.5, 1.5))
    self.assertEqual(found['temperature'], 1.5)
    self.assertEqual(search(logits)[0].text, 'ab')

  @language_model_test.needs_packages
  def test_one_utterance_does_not_move_the_defaults(self):
    # As above, where two utterances did: one fewer is within its error.
    logits = _a_then_c_rather_than_b(3.9)
    found, _ = self.tune(('ab', logits))
    self.assertEqual((found['alpha'], found['beta']), (0.5, 1.5))
    rates = [rate for *_, rate in found['dev_word_error_rates']]
    self.assertEqual((rates[0], min(rates)), (1.0, 0.0))

  @language_model_test.needs_packages
  def test_more_utterances_are_searched_until_the_defaults_err_200_times(self):
    # In 'ab' the defaults err, as above; 'ac' is what they find.
    logits = _a_then_c_rather_than_b(3.9)
    found, _ = self.tune(*[('ab', logits)] * 300)
    self.assertEqual(found['num_dev_words'], 200)
    self.assertEqual(found['alpha'], 1.0)
    found, _ = self.tune(*[('ab', logits)] * 199, *[('ac', logits)] * 50)
    self.assertEqual(found['num_dev_words'], 249)
    # Random ones of both, of which half are errors.
    found, _ = self.tune(*[('ab', logits)] * 400, *[('ac', logits)] * 400)
    self.assertBetween(found['num_dev_words'], 360, 440)

  def test_the_first_pair_within_a_standard_error_is_chosen(self):
    # The last has 1 error. The first has 9, in other utterances: 8 more, and
    # the error of the difference is sqrt(10). The second has 3: 2 more, and
    # sqrt(4).
    errors = np.zeros([3, 12], int)
    errors[0, :9] = 1
    errors[1, :3] = 1
    errors[2, 11] = 1
    self.assertEqual(lm_tuning._choose(errors), 1)
    self.assertEqual(lm_tuning._choose(errors[[0, 2]]), 1)
    self.assertEqual(lm_tuning._choose(errors[[2, 1, 0]]), 0)

  @language_model_test.needs_packages
  def test_private_dev_speakers_are_refused(self):
    public_data.write(
        self.run_, [public_data.source(self.dev, is_private=True)]
    )
    with self.assertRaisesRegex(
        ValueError, '2 speakers are private in .*run'
    ):
      self.tune(('ab', np.zeros([2, 5], np.float32)))
    self.assertFalse(os.path.exists(os.path.join(self.run_, 'decoding.json')))

  @language_model_test.needs_packages
  def test_dev_speakers_must_have_words(self):
    with self.assertRaisesRegex(ValueError, 'no words'):
      self.tune(('', np.zeros([2, 5], np.float32)))

  def test_a_damaged_file_is_named(self):
    path = pathlib.Path(self.run_, 'decoding.json')
    for content in ('{', '[]', '{"x": 1}', '{"x": {"alpha": 1}}',
                    json.dumps({'x': {'alpha': 1, 'beta': 1}}),
                    json.dumps({'x': dict.fromkeys(
                        ('alpha', 'beta', 'temperature'), 'a'
                    )})):
      path.write_text(content)
      with self.assertRaisesRegex(ValueError, 'decoding.json is damaged'):
        lm_tuning.read(self.run_)
