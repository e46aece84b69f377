"""Every folder of examples/ does what docs/extending.md says of it."""

import csv
import json
import pathlib
import re
import tempfile

from absl.testing import parameterized
import numpy as np
import soundfile

from tests.bin import in_process
from tests.bin import programs
from tools import layers

_EXAMPLES = layers.ROOT / 'examples'
_TRAIN = 'bin/train_federated.py'
_WORDS = ('one', 'two')


def _gin_file(path: str) -> str:
  return f'--gin_file={_EXAMPLES / path}'


class ExamplesTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.root = pathlib.Path(root)
    rng = np.random.default_rng(1)
    for split, speakers in ('train', ('ann', 'bob')), ('dev', ('cai',)):
      for word in _WORDS:
        (cls.root / 'words' / split / word).mkdir(parents=True)
        for speaker in speakers:
          path = cls.root / 'words' / split / word / f'{speaker}_0.wav'
          soundfile.write(path, 0.1 * rng.standard_normal(22050), 22050)
    # A file name without a speaker.
    (cls.root / 'words' / 'train' / 'one' / 'lost.wav').touch()
    cls.converted = in_process.run(
        'examples/corpus/spoken_words.py',
        f'--source_dir={cls.root / "words"}',
        f'--output_dir={cls.root / "shards"}',
        '--splits=train,dev',
        '--max_dropped=0.5',
    )

  def train(self, name: str, *arguments: str):
    settings = (
        *(each for each in programs.TINY if 'NUM_BLOCKS' in each),
        'DIM = 8',
        f'PRIVATE_DIR = {str(self.root / "shards" / "train")!r}',
        f'DEV_DIR = {str(self.root / "shards" / "dev")!r}',
        'INIT_FROM_RUN = None', 'COHORT_SIZE = 2', 'NUM_LOCAL_STEPS = 1',
        'NUM_ROUNDS = 2', 'EVALUATE_EVERY = 2', 'TARGET_EPSILON = None',
    )
    finished = in_process.run(
        _TRAIN,
        f'--output_dir={self.root / name}',
        '--gin_file=gin/experiments/quickstart_federated_dp.gin',
        *(f'--gin_param={setting}' for setting in settings),
        *arguments,  # Last, so that they override the settings.
    )
    self.assertEqual(finished.code, 0, finished.stderr)
    return (self.root / name / 'privacy_report.txt').read_text('utf-8')

  def test_corpus(self):
    self.assertEqual(self.converted.code, 0, self.converted.stderr)
    self.assertIn('has no speaker', self.converted.stdout)
    clients = self.root / 'shards' / 'train' / 'clients.tsv'
    self.assertLen(clients.read_text('utf-8').splitlines(), 3)

  def test_user_defined_parts_in_one_run(self):
    tracked = self.root / 'tracked.jsonl'
    report = self.train(
        'own',
        _gin_file('model/recurrent.gin'),
        _gin_file('server_optimizer/lion.gin'),
        _gin_file('mechanism/growing_clip.gin'),
        _gin_file('language/greek.gin'),
        _gin_file('tracker/json_lines.gin'),
        f'--gin_param=TRACKED = {str(tracked)!r}',
        '--gin_param=NOISE_MULTIPLIER = 2.0',
    )
    self.assertRegex(report, 'noise multiplier +2 ')
    run = self.root / 'own'
    parts = json.loads((run / 'model_spec.json').read_text('utf-8'))
    self.assertEqual(
        parts['MODEL']['arguments']['encoder']['build'], 'recurrent.build'
    )
    # Two rounds, in which the clip grew by its factor of 1.01.
    with open(run / 'metrics.csv', encoding='utf-8') as file:
      *_, last = csv.DictReader(file)
    clip = float(last['aggregator/dp_query_metrics/l2_norm_clip'])
    self.assertAlmostEqual(clip, 0.0101, places=6)
    # The tracker got what the run's own files got.
    last = json.loads(tracked.read_text('utf-8').splitlines()[-1])
    self.assertEqual(last['round'], 2)
    self.assertAlmostEqual(
        last['aggregator/dp_query_metrics/l2_norm_clip'], clip, places=9
    )
    self.assertIn('dev_word_error_rate', last)
    # What is said comes out in the language, of a model that must be trusted.
    recording = str(self.root / 'words' / 'dev' / 'one' / 'cai_0.wav')
    refused = in_process.run('bin/transcribe.py', f'--run={run}', recording)
    self.assertEqual(refused.code, 1)
    self.assertIn('--trust_code=FOLDER', refused.stderr)
    transcribed = in_process.run(
        'bin/transcribe.py', f'--run={run}',
        f'--trust_code={_EXAMPLES / "model"}', recording,
    )
    self.assertEqual(transcribed.code, 0, transcribed.stderr)

  def test_noise_is_charged_by_its_strategy(self):
    report = self.train(
        'lagged',
        _gin_file('mechanism/lagged_noise.gin'),
        '--gin_param=NOISE_MULTIPLIER = 2.0',
        # Two speakers, who take turns: each takes part in one of two rounds.
        '--gin_param=COHORT_SIZE = 1',
        f'--gin_param={programs.FROZEN}',
        '--gin_param=EVALUATOR = None',
    )
    self.assertIn('(BLT, 1 buffer)', report)
    # The norm of c = (1, 0.5): the first round's speaker moves both rounds.
    self.assertIn('1.118 clips', report)
    charged = (self.root / 'lagged' / 'ledger.jsonl').read_text('utf-8')
    self.assertEqual(
        json.loads(charged.splitlines()[-1])['cost']['strategy'],
        {'buf_decay': [2**29], 'output_scale': [2**29]},
    )

  def test_front_end(self):
    self.train(
        'cepstra',
        _gin_file('front_end/cepstra.gin'),
        '--gin_param=NOISE_MULTIPLIER = 2.0',
        f'--gin_param={programs.FROZEN}',
    )
    run = self.root / 'cepstra'
    parts = json.loads((run / 'model_spec.json').read_text('utf-8'))
    self.assertEqual(
        parts['PIPELINE']['arguments']['front_end']['build'], 'cepstra.build'
    )
    recording = str(self.root / 'words' / 'dev' / 'one' / 'cai_0.wav')
    transcribed = in_process.run(
        'bin/transcribe.py', f'--run={run}', recording,
        f'--trust_code={_EXAMPLES / "front_end"}',
    )
    self.assertEqual(transcribed.code, 0, transcribed.stderr)

  @parameterized.parameters('sign_mean', 'robust')
  def test_an_aggregator_is_labelled_not_private(self, name):
    report = self.train(
        name,
        _gin_file(f'aggregator/{name}.gin'),
        '--gin_param=NOISE_MULTIPLIER = 2.0',
        f'--gin_param={programs.FROZEN}',
        '--gin_param=EVALUATOR = None',
    )
    self.assertIn('NOT PRIVATE', report)

  def test_the_page_names_every_example(self):
    page = (layers.ROOT / 'docs' / 'extending.md').read_text('utf-8')
    for path in _EXAMPLES.rglob('*.gin'):
      self.assertIn(path.relative_to(layers.ROOT).as_posix(), page)
    # The recipe for noise quotes its example.
    example = _EXAMPLES / 'mechanism' / 'lagged_noise'
    (recipe,) = re.findall('## Noise\n(.*?)\n## ', page, re.DOTALL)
    python, gin = re.findall(r'```(?:python)?\n(.*?)```', recipe, re.DOTALL)
    self.assertIn(python, example.with_suffix('.py').read_text('utf-8'))
    self.assertIn(gin, example.with_suffix('.gin').read_text('utf-8'))
    for path in re.findall(r'examples/[\w/]+\.\w+', page):
      self.assertTrue((layers.ROOT / path).exists(), path)
