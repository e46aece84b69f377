"""Tests of tff_asr.programs.evaluation and evaluate."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import pathlib
import types
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests.decoding import language_model_test
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import speakers
from tff_asr.decoding import hypothesis as hypothesis_lib
from tff_asr.decoding import language_model as language_model_lib
from tff_asr.features import log_mel
from tff_asr.metrics import word_errors
from tff_asr.models import ctc
from tff_asr.programs import evaluation
from tff_asr.programs import lm_tuning
from tff_asr.programs import public_data
from tff_asr.storage import run_dir
from tff_asr.text import tokenizer as tokenizer_lib

_CLIENTS = {'ann': 3, 'bob': 2, 'cai': 1}


@functools.lru_cache
def _model():
  return fakes.tiny_model(num_blocks=1, dropout=0.5)


@functools.lru_cache
def _evaluator():
  model = _model()
  return evaluation.Evaluator(
      model=model,
      pipeline=fakes.tiny_pipeline(model, max_batch_sec=3.0),
      client_data=fakes.client_data(_CLIENTS),
  )


def _weights(*, letter: str | None = None):
  """Initial weights; with a letter, of a model that always outputs it."""
  weights = _model().initialize(tf.constant([1, 2]))
  if letter is not None:
    bias = np.zeros(5, np.float32)
    bias[' abc'.index(letter)] = 100.0
    weights['head/bias'] = tf.constant(bias)
  return weights


class EvaluatorTest(absltest.TestCase):

  def test_decodes_every_utterance_in_order_and_counts_its_errors(self):
    counts = []
    found = _evaluator()(_weights(letter='a'), progress=counts.append)
    self.assertEqual(sum(counts), sum(_CLIENTS.values()))
    self.assertGreater(len(counts), 1)
    expected = sorted(
        (example['utterance_id'], client_id, example['transcript'])
        for client_id, count in _CLIENTS.items()
        for example in fakes.examples(client_id, count)
    )
    self.assertEqual(
        [
            (each.utterance_id, each.client_id, each.reference)
            for each in found.hypotheses
        ],
        expected,
    )
    self.assertEqual({each.text for each in found.hypotheses}, {'a'})
    # 'a' for a transcript of n words: n errors, or n - 1 if 'a' is among them.
    errors = {client_id: 0 for client_id in _CLIENTS}
    words = 0
    for _, client_id, transcript in expected:
      spoken = transcript.split()
      errors[client_id] += len(spoken) - ('a' in spoken)
      words += len(spoken)
    by_client = found.errors_by_client()
    self.assertEqual(
        {client_id: each.errors for client_id, each in by_client.items()},
        errors,
    )
    self.assertEqual(found.word_error_rate, sum(errors.values()) / words)
    # 'a' for n tokens: all wrong, but one where there is an 'a'.
    transcripts = [transcript for _, _, transcript in expected]
    self.assertEqual(
        found.token_errors.errors,
        sum(len(each) - ('a' in each) for each in transcripts),
    )
    self.assertEqual(found.token_errors.words, len(''.join(transcripts)))

  def test_datasets_of_users_may_branch_on_tensors(self):
    def shorten(example):
      if tf.size(example['waveform']) > 9_000:
        example['waveform'] = example['waveform'][:9_000]
      return example

    spoken = fakes.client_data(_CLIENTS)
    branching = tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
        spoken.client_ids,
        lambda name: spoken.serializable_dataset_fn(name).map(shorten),
    )
    model = _model()
    evaluator = evaluation.Evaluator(
        model=model,
        pipeline=fakes.tiny_pipeline(model),
        client_data=branching,
    )
    self.assertLen(
        evaluator(_weights()).hypotheses, sum(_CLIENTS.values())
    )

  def test_token_errors_count_boundaries_and_words_do_not(self):
    model = _model()
    tokenizer = tokenizer_lib.CharTokenizer(' abc', boundary=' ')
    evaluator = evaluation.Evaluator(
        model=model,
        pipeline=dataclasses.replace(
            fakes.tiny_pipeline(model), tokenizer=tokenizer
        ),
        client_data=fakes.client_data(_CLIENTS),
    )
    found = evaluator(_weights(letter='a'))
    plain = _evaluator()(_weights(letter='a'))
    self.assertEqual(found.errors, plain.errors)
    added = 2 * sum(_CLIENTS.values())
    self.assertEqual(
        found.token_errors.words, plain.token_errors.words + added
    )
    self.assertEqual(
        found.token_errors.errors, plain.token_errors.errors + added
    )
    losses = evaluator(_weights()).loss, _evaluator()(_weights()).loss
    self.assertNotAlmostEqual(*losses, places=2)

  def test_evaluations_repeat_exactly_and_without_dropout(self):
    first = _evaluator()(_weights())
    with fakes.counted(pipeline_lib.Pipeline, 'pack') as traced:
      self.assertEqual(_evaluator()(_weights()), first)
    self.assertEmpty(traced)
    arrays = {name: value.numpy() for name, value in _weights().items()}
    self.assertEqual(_evaluator()(arrays), first)
    plain = fakes.tiny_model(num_blocks=1, dropout=0.0)
    without = evaluation.Evaluator(
        model=plain,
        pipeline=fakes.tiny_pipeline(plain, max_batch_sec=3.0),
        client_data=fakes.client_data(_CLIENTS),
    )
    self.assertEqual(without(_weights()), first)

  def test_loss_is_the_mean_over_utterances_that_have_one(self):
    # Some are too long for a loss, in batches with others; all are decoded.
    model = _model()
    client_data = fakes.client_data(_CLIENTS)
    pipeline = fakes.tiny_pipeline(
        model, max_batch_sec=3.0, max_utterance_sec=1.0
    )
    losses, usable = [], []
    for client_id in _CLIENTS:
      for batch in pipeline.evaluation_batches(
          client_data.create_tf_dataset_for_client(client_id)
      ):
        logits, lengths = model.logits(
            _weights(), batch['features'], batch['feature_lengths']
        )
        losses.extend(
            ctc.loss(
                logits, lengths, batch['labels'], batch['label_lengths']
            ).numpy()
        )
        usable.extend(batch['example_weights'].numpy() > 0)
    self.assertBetween(sum(usable), 2, len(usable) - 2)
    found = evaluation.Evaluator(
        model=model, pipeline=pipeline, client_data=client_data
    )(_weights())
    np.testing.assert_allclose(
        found.loss, np.mean(np.array(losses)[usable]), rtol=1e-5
    )
    self.assertLen(found.hypotheses, len(usable))

  def test_the_published_rate_has_fill_rows_and_no_long_utterances(self):
    model = _model()
    evaluator = evaluation.Evaluator(
        model=model,
        # All six in one batch.
        pipeline=fakes.tiny_pipeline(
            model, max_batch_sec=30.0, max_utterance_sec=1.0
        ),
        client_data=fakes.client_data(_CLIENTS),
    )
    found = evaluator(_weights(letter='a'))
    short = [
        example
        for client_id, count in _CLIENTS.items()
        for example in fakes.examples(client_id, count)
        if log_mel.num_frames(len(example['waveform']))
        <= log_mel.frames_of_seconds(1.0)
    ]
    self.assertBetween(len(short), 1, 5)
    # What fills the batch of the short ones to 8 rows counts as words.
    weight = 8.0 - len(short)
    wrong = 0.0
    for example in short:
      spoken = example['transcript'].split()
      weight += len(spoken) + 2
      wrong += (1 - ('a' in spoken) / len(spoken)) * (len(spoken) + 2)
    self.assertLen(found.hypotheses, 6)
    self.assertAlmostEqual(found.published_word_error_rate, wrong / weight)


class BeamSearchTest(cases.TestCase):

  def test_one_pass_of_the_network_serves_both_decodings(self):
    shapes = []

    def name_length(logits):
      shapes.append(logits.shape)
      return [hypothesis_lib.Hypothesis(f'{len(logits)}', [], 0.0)]

    greedy = _evaluator()(_weights(letter='a'))
    found = _evaluator()(_weights(letter='a'), beam_search=name_length)
    # The valid frames of each utterance, and 5 logits a frame.
    self.assertEqual({size for _, size in shapes}, {5})
    # Each utterance's own, and not those of the longest of its batch.
    lengths = {
        example['utterance_id']: _model().encoder.output_lengths(
            tf.constant(log_mel.num_frames(len(example['waveform'])))
        )
        for client_id, count in _CLIENTS.items()
        for example in fakes.examples(client_id, count)
    }
    self.assertEqual(
        {each.utterance_id: each.text_with_lm for each in found.hypotheses},
        {key: f'{length.numpy()}' for key, length in lengths.items()},
    )
    self.assertEqual(
        [each._replace(text_with_lm=None) for each in found.hypotheses],
        greedy.hypotheses,
    )
    self.assertEqual(found.loss, greedy.loss)

  def evaluate(self, **settings):
    """Evaluates a model that always outputs 'a'; returns results and output."""
    run = self.path('run')
    if not os.path.exists(run):
      pathlib.Path(self.path('words.arpa')).write_text(language_model_test.ARPA)
      folder = run_dir.RunDir(run, configuration='')
      folder.write_model(_weights(letter='a'), tokens=' abc')
      public_data.write(run, [])
      fakes.write_split(self.path('test'), _CLIENTS)
      fakes.write_split(self.path('dev'), {'dee': 1})
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      with contextlib.redirect_stderr(io.StringIO()):
        (result,) = evaluation.evaluate(
            runs=[run],
            model=_model(),
            pipeline=fakes.tiny_pipeline(_model()),
            client_data=client_data_lib.load(self.path('test')),
            language_model=language_model_lib.LanguageModel(
                path=self.path('words.arpa')
            ),
            **settings,
        )
    return result, printed.getvalue()

  @language_model_test.needs_packages
  def test_results_have_both_decodings_and_name_the_model(self):
    result, printed = self.evaluate()
    data = pathlib.Path(self.path('words.arpa')).read_bytes()
    with_lm = result['with_lm']
    self.assertEqual(
        (with_lm['file'], with_lm['order'], with_lm['sha256']),
        ('words.arpa', 2, hashlib.sha256(data).hexdigest()),
    )
    for each in (result, with_lm):
      for rate, counts, unit in (
          ('word_error_rate', 'speakers', 'words'),
          ('character_error_rate', 'characters', 'characters'),
          ('sentence_error_rate', 'sentences', 'sentences'),
      ):
        found = word_errors.total(
            word_errors.WordErrors(*counted.values())
            for counted in each[counts].values()
        )
        self.assertEqual([*each[counts]['ann']][-1], unit)
        self.assertEqual(each[rate], found.rate)
    references = [each['reference'] for each in result['hypotheses']]
    self.assertEqual(
        sum(each['characters'] for each in result['characters'].values()),
        len(''.join(references)),
    )
    # The model outputs 'a', which begins words of the language model.
    self.assertEqual(
        {(e['text'], e['text_with_lm']) for e in result['hypotheses']},
        {('a', 'a')},
    )
    # Not tuned: there are no dev speakers.
    self.assertEqual((with_lm['alpha'], with_lm['beta']), (0.5, 1.5))
    self.assertRegex(
        printed,
        r'\(weight 0.5, word bonus 1.5, temperature 1\)\n'
        r'LM: words.arpa \(order 2, SHA-256 \w{8}\)\n$',
    )

  @language_model_test.needs_packages
  def test_weights_are_tuned_once_on_dev_speakers_and_kept(self):
    result, _ = self.evaluate(dev_dir=self.path('dev'))
    kept = lm_tuning.read(self.path('run'))
    self.assertEqual([*kept], [result['with_lm']['sha256']])
    (found,) = kept.values()
    self.assertEqual(found['num_dev_speakers'], 1)
    found['alpha'] = 0.25
    pathlib.Path(self.path('run/decoding.json')).write_text(json.dumps(kept))
    for dev_dir in self.path('dev'), None:
      result, _ = self.evaluate(dev_dir=dev_dir)
      self.assertEqual(result['with_lm']['alpha'], 0.25)

  @language_model_test.needs_packages
  def test_private_dev_speakers_are_refused_before_anything_is_decoded(self):
    self.evaluate(output_name='other.json')
    dev = client_data_lib.load(self.path('dev'))
    public_data.write(
        self.path('run'), [public_data.source(dev, is_private=True)]
    )
    with self.assertRaisesRegex(ValueError, '1 speakers are private'):
      self.evaluate(dev_dir=self.path('dev'))
    self.assertFalse(os.path.exists(self.path('run/test.json')))

  @language_model_test.needs_packages
  def test_rules_of_normalisation_count_and_are_named(self):
    plain, _ = self.evaluate()
    self.assertEqual(plain['normalization'], [])
    # 'a b c' read as 'abc' has no errors; of 'a' it changes none.
    result, printed = self.evaluate(rules=['compounds', 'digits'])
    self.assertEqual(result['normalization'], ['compounds', 'digits'])
    self.assertIn('of 3 speakers, normalised by compounds, digits\n', printed)
    evaluated = evaluation.Evaluation(
        hypotheses=[evaluation.EvaluatedUtterance('x', 'x', 'a b c', 'ab c')],
        loss=0.0,
    )
    self.assertEqual(evaluated.word_error_rate, 2 / 3)
    joined = dataclasses.replace(evaluated, rules=['compounds'])
    self.assertEqual(joined.word_error_rate, 0.0)
    self.assertEqual(joined.character_error_rate, 0.0)
    with self.assertRaisesRegex(ValueError, 'rule must be one of'):
      self.evaluate(rules=['x'])


class EvaluateRecognizerTest(cases.TestCase):

  def evaluate(self, texts, **options):
    """Evaluates what yields these texts; returns result and what is printed."""
    self.names = []

    def recognize(waveforms):
      # Read ahead, as batches are.
      waveforms = list(waveforms)
      for (name, waveform), text in zip(waveforms, texts, strict=True):
        self.assertEqual(waveform.dtype, np.int16)
        self.names.append(name)
        yield types.SimpleNamespace(text=text)

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), (
        contextlib.redirect_stderr(io.StringIO())
    ):
      result = evaluation.evaluate_recognizer(
          recognize, name='whisper', **options
      )
    return result, printed.getvalue()

  def data(self):
    """Two speakers: one says 'a b' and 'a b', the other 'a b c'."""
    spoken = [
        fakes.utterance(client_id, index) | {'transcript': transcript}
        for client_id, index, transcript in (
            ('ann', 0, 'a b'), ('ann', 1, 'a b'), ('bob', 0, 'a b c'),
        )
    ]
    return client_data_lib.load(
        fakes.write_examples(self.path('test'), spoken)
    )

  def test_errors_by_hand(self):
    folder = self.path('out', 'untrained')
    result, printed = self.evaluate(
        ['a b', 'a c', 'a'], client_data=self.data(), output_dir=folder
    )
    self.assertEqual(self.names, ['ann-0', 'ann-1', 'bob-0'])
    # ann: one of 4 words substituted; bob: two of 3 deleted.
    self.assertEqual(
        result['speakers'],
        {
            'ann': {
                'substitutions': 1, 'deletions': 0, 'insertions': 0, 'words': 4
            },
            'bob': {
                'substitutions': 0, 'deletions': 2, 'insertions': 0, 'words': 3
            },
        },
    )
    self.assertEqual(result['word_error_rate'], 3 / 7)
    # One of 6 characters of ann; 4 of the 5 of 'a b c'.
    self.assertEqual(result['character_error_rate'], 5 / 11)
    self.assertEqual(result['public_model'], 'whisper')
    self.assertEqual(
        [each['text'] for each in result['hypotheses']], ['a b', 'a c', 'a']
    )
    for name in 'loss', 'token_error_rate', 'published_word_error_rate':
      self.assertNotIn(name, result)
    # The interval is from the better speaker's rate to the worse one's.
    self.assertEqual(
        printed,
        'whisper: WER 42.86 % (25.00 to 66.67), CER 45.45 %, SER 66.67 % of 7 '
        'words of 2 speakers\n',
    )
    with open(os.path.join(folder, 'test.json'), encoding='utf-8') as f:
      self.assertEqual(json.load(f), result)

  def test_rules_apply_and_are_named(self):
    texts = ['a-b', 'a b', 'a b c']
    plain, _ = self.evaluate(texts, client_data=self.data())
    self.assertEqual(plain['word_error_rate'], 2 / 7)
    result, printed = self.evaluate(
        texts, client_data=self.data(), rules=['hyphens']
    )
    self.assertEqual(result['word_error_rate'], 0.0)
    self.assertEqual(result['normalization'], ['hyphens'])
    self.assertEndsWith(printed, ' speakers, normalised by hyphens\n')
    with self.assertRaisesRegex(ValueError, 'rule must be one of'):
      self.evaluate(texts, client_data=self.data(), rules=['x'])

  def test_stored_features_are_refused(self):
    corpus = types.SimpleNamespace(path='stored', features=object())
    data = self.data()
    with mock.patch.object(
        client_data_lib, 'corpus_of', return_value=corpus
    ), self.assertRaisesRegex(ValueError, 'stored holds features, which whisp'):
      self.evaluate([], client_data=data)

  def test_the_folder_of_a_run_is_refused(self):
    os.makedirs(self.path('run'))
    pathlib.Path(self.path('run', 'metrics.csv')).write_text('')
    with self.assertRaisesRegex(ValueError, 'run is the folder of a run'):
      self.evaluate(
          [], client_data=self.data(), output_dir=self.path('run')
      )
    self.assertEqual(os.listdir(self.path('run')), ['metrics.csv'])


class EvaluateTest(cases.TestCase):

  def test_writes_the_result_of_each_run(self):
    shards = fakes.write_split(self.root + '/test', _CLIENTS | {'dee': 1})
    ages = {'ann': frozenset({'teens'}), 'dee': frozenset({'x'})}
    speakers.write_attributes(shards, {'age': ages})
    data = client_data_lib.load(shards, client_ids=_CLIENTS)
    runs = []
    for letter in ('a', 'b'):
      runs.append(self.path(letter))
      folder = run_dir.RunDir(runs[-1], configuration='')
      folder.write_model(_weights(letter=letter), tokens=' abc')
      public_data.write(runs[-1], [])
    bob = fakes.write_split(self.path('bob'), {'bob': 1})
    public_data.write(
        runs[1],
        [public_data.source(client_data_lib.load(bob), is_private=True)],
    )
    printed = io.StringIO()
    arguments = dict(
        model=_model(),
        pipeline=fakes.tiny_pipeline(_model()),
        client_data=data,
    )
    with contextlib.redirect_stdout(printed):
      with contextlib.redirect_stderr(io.StringIO()):
        results = evaluation.evaluate(runs=runs, **arguments)
    for run, letter, result in zip(runs, 'ab', results, strict=True):
      with open(run + '/test.json', encoding='utf-8') as f:
        self.assertEqual(json.load(f), result)
      self.assertEqual(
          {each['text'] for each in result['hypotheses']}, {letter}
      )
      self.assertEqual(result['num_utterances'], 6)
      self.assertBetween(result['token_error_rate'], 0.3, 1.0)
      self.assertBetween(result['published_word_error_rate'], 0.3, 1.0)
      self.assertIn(
          f'TER {100 * result["token_error_rate"]:.2f} %', printed.getvalue()
      )
      # Attributes of decoded speakers only, and only where they are known.
      self.assertEqual(result['attributes'], {'ann': {'age': 'teens'}})
      self.assertEqual(result['num_speakers'], 3)
      self.assertIn(
          f'{run}: WER {100 * result["word_error_rate"]:.2f} %',
          printed.getvalue(),
      )
    self.assertEqual(
        [each['private'] for each in results],
        [
            dict(private_speakers=count, is_checked=True) for count in (0, 1)
        ],
    )
    self.assertNotIn(f'{runs[0]}: NOT PRIVATE', printed.getvalue())
    self.assertIn(f'{runs[1]}: NOT PRIVATE: 1 of these', printed.getvalue())
    with contextlib.redirect_stdout(printed):
      with contextlib.redirect_stderr(io.StringIO()):
        evaluation.evaluate(
            runs=runs[:1], output_name='again.json', **arguments
        )
    self.assertTrue(os.path.exists(runs[0] + '/again.json'))
    with self.assertRaisesRegex(ValueError, 'runs must be a list'):
      evaluation.evaluate(runs=runs[0], **arguments)
    with open(f'{shards}/{speakers.SPEAKERS_FILE}', 'a') as f:
      f.write('more')
    with self.assertRaisesRegex(ValueError, 'speakers.tsv does not have the'):
      evaluation.evaluate(runs=runs, **arguments)
