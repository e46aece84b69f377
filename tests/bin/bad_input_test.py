"""Answers of the programs of bin/ to bad input: one row per fault.

Each row runs a program in this process and states the essential parts of every
line that it must write: one line a fault, exit code 1, nothing on standard
output, and no file written or changed.
"""

import os
import pathlib
import tempfile

from absl.testing import parameterized
import tensorflow as tf

from tests.bin import in_process
from tests.bin import programs
from tests import fakes
from tff_asr.models import ctc
from tff_asr.models import transformer
from tff_asr.storage import run_dir
from tff_asr.text import tokenizer as tokenizer_lib


def _files(root: str) -> dict[str, tuple[int, bytes]]:
  """Everything under a folder: time of change and content."""
  found = {}
  for folder, _, names in os.walk(root):
    found[folder] = (0, b'')
    for name in names:
      path = os.path.join(folder, name)
      found[path] = (os.stat(path).st_mtime_ns, pathlib.Path(path).read_bytes())
  return found


class BadInputTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.root = root
    cls.clients = fakes.write_split(
        os.path.join(root, 'clients'), {'ann': 1, 'bob': 2, 'cai': 1}
    )
    fakes.write_split(
        os.path.join(root, 'foreign'), {'zoe': 1}, transcript='naïve'
    )
    os.mkdir(os.path.join(root, 'empty'))
    pathlib.Path(root, 'file').write_text('not a folder')
    cls.write_seed('seed', dim=8, tokens=tokenizer_lib.ENGLISH)
    cls.write_seed('wide', dim=16, tokens=tokenizer_lib.ENGLISH)
    cls.write_seed('letters', dim=8, tokens=' abc')

  @classmethod
  def write_seed(cls, name: str, *, dim: int, tokens: str) -> None:
    """A trained model's folder."""
    model = ctc.build(
        encoder=transformer.build(
            num_blocks=1, dim=dim, mlp_dim=16, num_heads=2
        ),
        tokenizer=tokenizer_lib.CharTokenizer(tokens),
    )
    folder = run_dir.RunDir(os.path.join(cls.root, name), configuration='')
    folder.write_model(model.initialize(tf.constant([1, 2])), tokens=tokens)

  def path(self, name: str) -> str:
    return os.path.join(self.root, name)

  def check(self, expected, program: str, *arguments: str) -> None:
    """`expected` has the essential parts of each line, as tuples or texts."""
    before = _files(self.root)
    finished = in_process.run(program, *arguments)
    self.assertEqual(finished.code, 1, finished.stderr)
    self.assertEqual(finished.stdout, '')
    lines = finished.stderr.splitlines()
    self.assertLen(lines, len(expected), finished.stderr)
    for line, parts in zip(lines, expected):
      self.assertStartsWith(line, 'error: ')
      self.assertLess(len(line), 500)
      for part in (parts,) if isinstance(parts, str) else parts:
        self.assertIn(part.replace('ROOT', self.root), line)
    self.assertEqual(_files(self.root), before)

  def check_settings(self, program: str, settings, expected, defaults):
    flags = [] if program == 'evaluate' else [f'--output_dir={self.root}/run']
    experiment = {
        'train_central': 'quickstart_seed',
        'train_federated': 'quickstart_federated',
        'evaluate': 'quickstart_evaluate',
        'pretrain': 'pretrain_mini_private',
    }[program]
    model, sizes = [], ()
    if program != 'pretrain':
      model = ['--gin_file=gin/models/transformer_toy.gin']
      sizes = (*programs.TINY, 'MLP_DIM = 16', 'NUM_HEADS = 2')
    params = (*sizes, *defaults, *settings)
    self.check(
        expected,
        f'bin/{program}.py',
        *flags,
        f'--gin_file=gin/experiments/{experiment}.gin',
        *model,
        *(f'--gin_param={p}'.replace('ROOT', self.root) for p in params),
    )

  @parameterized.named_parameters(
      ('no_folder', ["TRAIN_DIR = 'no/such'"], ['no/such is not a folder']),
      ('characters', ["TRAIN_DIR = 'ROOT/foreign'"], ["not tokens: 'ï'"]),
      (
          'periods',
          ['EVALUATE_EVERY = -1'],
          ['evaluate_every must be', 'save_every must be'],
      ),
      (
          'not_numbers',
          ["NUM_STEPS = '9'", 'EVALUATE_EVERY = 2.5', 'SEED = None'],
          [
              ('NUM_STEPS must be an integer', "'9'"),
              ('SEED must be an integer', 'found None'),
              ('EVALUATE_EVERY must be an integer', '2.5'),
          ],
      ),
      (
          'model',
          ['DIM = 9', "LOSS_KERNEL = 'slow'"],
          [('num_heads', '9')],
      ),
      (
          'batch',
          ['MAX_BATCH_SEC = 3.0', 'MAX_UTTERANCE_SEC = 4.0'],
          [('max_utterance_sec 4.0', 'max_batch_sec 3.0')],
      ),
      (
          'utterances_too_long',
          ['MAX_UTTERANCE_SEC = 0.3'],
          [('max_utterance_sec 0.3', 'raise it')],
      ),
      (
          'augmentation',
          ['MAX_TIME_SHARE = 2.0'],
          [('max_time_share', '2.0')],
      ),
      (
          'schedule',
          ['DECAY_STEPS = 0', 'WARMUP_STEPS = -1'],
          [('transition_rounds', '0')],
      ),
      ('no_seed', ["INIT_FROM_RUN = 'no/run'"], ['no/run contains no trained']),
      ('seed_not_a_run', ["INIT_FROM_RUN = 'ROOT/file'"], ['contains no trained']),
      (
          'seed_of_another_shape',
          ["INIT_FROM_RUN = 'ROOT/wide'"],
          [('does not fit', '16] there and', '8] here')],
      ),
      (
          'seed_of_other_tokens',
          ["INIT_FROM_RUN = 'ROOT/letters'"],
          [("is ' abc'", 'tokenizer of that run')],
      ),
      (
          'seed_is_the_run',
          ["INIT_FROM_RUN = 'ROOT/run'"],
          ['contains no trained model'],
      ),
      (
          'misspelt',
          ['NUM_STEP = 2', 'LEARNING_RAT = 1.0', 'DIM = [2'],
          ['DIM = [', 'Did you mean LEARNING_RATE?', 'Did you mean NUM_STEPS?'],
      ),
      (
          'dropout',
          ['DROPOUT = -1.0'],
          [('dropout', '-1.0')],
      ),
  )
  def test_train_central(self, settings, expected):
    defaults = ("TRAIN_DIR = 'ROOT/clients'", "DEV_DIR = 'ROOT/clients'")
    self.check_settings('train_central', settings, expected, defaults)

  @parameterized.named_parameters(
      (
          'relations',
          [
              'NUM_ROUNDS = 0',
              'COHORT_SIZE = 4',
              "INIT_FROM_RUN = 'ROOT/wide'",
          ],
          ['num_rounds', ('cohort_size', '4', '3'), 'does not fit'],
      ),
      (
          'settings',
          ['SAVE_EVERY = 0', 'DELTA = 2.0', 'NOISE_SEED = -1'],
          ['save_every', ('delta', '2.0'), 'noise_seed'],
      ),
      (
          'devices',
          ["DEVICES = ['GPU:7']"],
          [('GPU:7', 'not on this machine')],
      ),
      (
          'characters_of_the_dev_set',
          ["DEV_DIR = 'ROOT/foreign'"],
          ["not tokens: 'ï'; add them"],
      ),
      (
          'local_work',
          ['NUM_LOCAL_STEPS = None'],
          ['num_steps or num_epochs must be set'],
      ),
      (
          'noise',
          ['NOISE_MULTIPLIER = 1.0', 'L2_NORM_CLIP = 1e999'],
          ['needs a finite l2_norm_clip'],
      ),
      (
          'clipping',
          ["CLIP_SPLIT = 'dim'", "CLIP_WEIGHTS = {'zz': 2.0}"],
          [("'zz' is found in none of the", 'layers, block_00/ln1/bias to')],
      ),
      (
          'cohorts_called',
          ['BUILD_COHORTS = @cohorts.poisson()', "NUM_ROUNDS = 'ten'"],
          ['cohorts.poisson.client_ids has no value', 'NUM_ROUNDS'],
      ),
  )
  def test_train_federated(self, settings, expected):
    defaults = (
        "PRIVATE_DIR = 'ROOT/clients'",
        "DEV_DIR = 'ROOT/clients'",
        'INIT_FROM_RUN = None',
        'COHORT_SIZE = 2',
    )
    self.check_settings('train_federated', settings, expected, defaults)

  @parameterized.named_parameters(
      (
          'relations',
          [
              'NUM_STEPS = 0',
              "DEVICES = ['GPU:7']",
              'BATCH_SIZE = 5',
              'FREEZE = @layer_freeze.LayerFreeze()',
          ],
          [
              'num_steps',
              ('GPU:7', 'not on this machine'),
              ('batch_size is 5', 'only 4 utterances'),
              'freeze needs the scores',
          ],
      ),
      (
          'settings',
          ['SAMPLER_SEED = -1', 'TARGET_EPSILON = 1.0', 'KEEP_LAST = 0'],
          [
              'keep_last',
              ('target_epsilon is 1 at no delta', 'set DELTA'),
              'sampler_seed',
          ],
      ),
      (
          'public',
          ['BUILD_QUERY = None', 'TARGET_EPSILON = 1.0', 'DELTA = 1e-3'],
          [('target_epsilon is 1.0', 'add a file of gin/privacy')],
      ),
      (
          'freeze',
          ['FREEZE = @layer_freeze.LayerFreeze()', 'FREEZE_SHARE = 1.0'],
          [('share must be below 1', 'nothing is left')],
      ),
  )
  def test_pretrain(self, settings, expected):
    defaults = (
        "TRAIN_DIR = 'ROOT/clients'",
        "DEV_DIR = 'ROOT/clients'",
        'INIT_FROM_RUN = None',
        'FREEZE = None',
        'BATCH_SIZE = 2',
    )
    self.check_settings('pretrain', settings, expected, defaults)

  @parameterized.named_parameters(
      ('none', ['RUNS = []'], ['runs must be a list of run folders']),
      (
          'each_is_named',
          ["RUNS = ['no/run', 'ROOT/seed', 'ROOT/wide', 'ROOT/letters']"],
          ['no/run contains no', 'wide does not fit', "letters is ' abc'"],
      ),
      (
          'over_the_results',
          ["OUTPUT_NAME = 'results.json'"],
          ['output_name results.json is what training writes'],
      ),
      (
          'over_the_model',
          ["OUTPUT_NAME = 'model.safetensors'"],
          ['output_name must be a file name such as'],
      ),
      (
          'elsewhere',
          ["OUTPUT_NAME = '../test.json'", "RUNS = ['no/run']"],
          ['no/run contains no', 'output_name must be a file name'],
      ),
      ('characters', ["TEST_DIR = 'ROOT/foreign'"], ["not tokens: 'ï'"]),
  )
  def test_evaluate(self, settings, expected):
    defaults = ("TEST_DIR = 'ROOT/clients'", "RUNS = ['ROOT/seed']")
    self.check_settings('evaluate', settings, expected, defaults)

  @parameterized.named_parameters(
      ('none', [], ['--output_dir is needed']),
      ('no_file', ['--output_dir=x'], ['give a file with --gin_file']),
      ('unknown', ['--outpt_dir=x'], [('outpt_dir', 'Did you mean')]),
      (
          'no_such_file',
          ['--output_dir=x', '--gin_file=no.gin'],
          ['configuration file no.gin does not exist'],
      ),
      (
          'a_file_of_another_program',
          ['--output_dir=x', '--gin_file=gin/experiments/an4_federated.gin'],
          ['does not configure tff_asr.programs.central.CentralTraining'],
      ),
      (
          'a_public_model_for_a_model_without_one',
          [
              '--output_dir=x',
              '--pretrained=whisper-tiny.en',
              '--gin_file=gin/experiments/quickstart_seed.gin',
          ],
          ['quickstart_seed.gin has no public part; add --gin_file=gin/models'],
      ),
      (
          'an_unknown_public_model',
          [
              '--output_dir=x',
              '--pretrained=no/such/model',
              '--gin_file=gin/experiments/an4_whisper_seed.gin',
              '--gin_param=TRAIN_DIR = "ROOT/clients"',
              '--gin_param=DEV_DIR = "ROOT/clients"',
          ],
          ["'no/such/model' is no public model"],
      ),
      (
          'a_word',
          ['--output_dir=x', 'gin/x.gin'],
          ["unexpected argument 'gin/x.gin'"],
      ),
      (
          'a_folder',
          ['--output_dir=x', '--gin_file=gin'],
          ['configuration file gin does not exist'],
      ),
      (
          'all_that_is_unset',
          ['--output_dir=x', '--gin_file=gin/programs/central.gin'],
          [
              '%BASE_OPTIMIZER is used and nowhere set',
              '%MODEL is used and nowhere set',
              '%OUTPUT_LENGTHS is used and nowhere set',
              "DEV_DIR has no value; set it with --gin_param='DEV_DIR = ...'",
              'LEARNING_RATE has no value',
              'NUM_STEPS has no value',
              'TRAIN_DIR has no value',
          ],
      ),
  )
  def test_flags_of_train_central(self, flags, expected):
    flags = [flag.replace('ROOT', self.root) for flag in flags]
    self.check(expected, 'bin/train_central.py', *flags)
    self.assertFalse(os.path.exists('x'))

  @parameterized.named_parameters(
      ('file', 'file', 'cannot be a folder'),
      ('under_a_file', 'file/run', 'cannot be a folder'),
      ('results', 'seed', 'contains model.safetensors but no saved state'),
  )
  def test_output_dir(self, name, message):
    self.check(
        ['num_steps must be', message],
        'bin/train_central.py',
        f'--output_dir={self.path(name)}',
        '--gin_file=gin/experiments/quickstart_seed.gin',
        f'--gin_param=TRAIN_DIR = {self.clients!r}',
        f'--gin_param=DEV_DIR = {self.clients!r}',
        '--gin_param=NUM_STEPS = 0',
    )

  @parameterized.named_parameters(
      ('report_no_run', 'report', [], ['no RUN was given']),
      (
          'each_run_is_named',
          'report',
          ['no/a', 'no/b'],
          ['no/a has no config.gin', 'no/b has no config.gin'],
      ),
      ('name_twice', 'report', ['x', 'y', '--name=a', '--name=a'],
       ['--name=a is given twice']),
      ('num_worst', 'report', ['x', '--num_worst=-1'], ['num_worst']),
      ('erase_no_run', 'erase_secrets', [], ['--run is needed']),
      (
          'erase_of_no_run',
          'erase_secrets',
          ['--run=no/run'],
          ['no/run has no config.gin'],
      ),
      (
          'erase_of_a_corpus',
          'erase_secrets',
          ['--run=ROOT/clients'],
          ['ROOT/clients has no config.gin: is it the folder of a run'],
      ),
      ('transcribe_nothing', 'transcribe', ['--run=x'], ['no FILE was given']),
      ('transcribe_no_run', 'transcribe', ['x.wav'], ['one of (run, pretrain']),
      (
          'transcribe_of_no_run',
          'transcribe',
          ['--run=no/run', 'x.wav'],
          ['no/run has no model_spec.json'],
      ),
      (
          'num_best_as_text',
          'transcribe',
          ['--run=no/run', '--num_best=2', 'x.wav'],
          ['--num_best is for --format=json'],
      ),
      (
          'no_language_model',
          'transcribe',
          ['--run=no/run', '--lm=no.arpa', 'x.wav'],
          ['no.arpa does not exist'],
      ),
      (
          'export_of_no_run',
          'export',
          ['--run=no/run', '--output_dir=x', '--data=y'],
          ['no/run has no config.gin'],
      ),
  )
  def test_programs_of_runs(self, program, arguments, expected):
    arguments = [each.replace('ROOT', self.root) for each in arguments]
    self.check(expected, f'bin/{program}.py', *arguments)

  def test_an_audit_has_no_dry_run(self):
    flags = [f'--output_dir={self.path("run")}', '--dry_run']
    self.check(['has no --dry_run'], 'bin/audit_privacy.py', *flags)

  @parameterized.named_parameters(
      ('source', ['--source=no/speech'], ['no/speech is not a folder']),
      ('real', ['--real=no/speech'], ['--real=no/speech does not exist']),
      ('two', ['--real', '--source=x'], ['--real and --source']),
      ('small', ['--real', '--small'], ['--small is for generated speech']),
      ('flag', ['--sorce=x'], [('sorce', 'Did you mean')]),
      (
          'places',
          ['--data_dir=ROOT/file', '--runs_dir=ROOT/file/runs'],
          ['data_dir ROOT/file cannot be', 'runs_dir ROOT/file/runs cannot be'],
      ),
  )
  def test_quickstart(self, flags, expected):
    flags = [flag.replace('ROOT', self.root) for flag in flags]
    self.check(expected, 'bin/run_quickstart.py', *flags)

  @parameterized.named_parameters(
      ('study', ['--studies=noise,z'], [("study 'z'", 'choose from encoder')]),
      ('source', ['--source=no/speech'], ['no/speech is not a folder']),
      (
          'test',
          ['--source=ROOT/clients', '--test=no/test'],
          ['test no/test is not a folder'],
      ),
      (
          'test_without_source',
          ['--test=ROOT/clients'],
          ['--test is for the suite an4, with --source'],
      ),
      ('no_shards', [], [('no shards of AN4', '--source')]),
      ('no_runs', ['--studies='], ['ROOT/new/runs holds no runs']),
      (
          'report',
          ['--report=ROOT/file/results.md', '--source=no/speech'],
          ['no/speech is not', 'report ROOT/file cannot be'],
      ),
      ('num_at_once', ['--num_at_once=0'], ['num_at_once']),
      (
          'source_of_generated_speech',
          ['--suite=population', '--source=ROOT/clients'],
          [('suite population takes no --source', 'an4')],
      ),
      (
          'source_of_layer_clipping',
          [
              '--suite=layer_clipping',
              '--source=ROOT/clients',
              '--num_at_once=2',
          ],
          ['suite layer_clipping takes no --source'],
      ),
      (
          'pretraining',
          ['--suite=pretraining', '--source=no/speech', '--num_at_once=2'],
          ['takes no --source', 'suite pretraining takes no --num_at_once'],
      ),
  )
  def test_experiments(self, flags, expected):
    flags = [
        '--data_dir=ROOT/new/data',
        '--runs_dir=ROOT/new/runs',
        '--report=ROOT/new/results.md',
        *flags,
    ]
    flags = [flag.replace('ROOT', self.root) for flag in flags]
    self.check(expected, 'experiments.run', *flags)

  @parameterized.named_parameters(
      (
          'nothing_given',
          'librispeech',
          [],
          ['--source_dir is needed', '--output_dir is needed'],
      ),
      (
          'encoding',
          'an4',
          ['--encoding=mp3'],
          [('--encoding=mp3', 'pcm|flac')],
      ),
      (
          'output_is_a_file',
          'an4',
          ['--source_dir=ROOT', '--output_dir=ROOT/file/shards'],
          ['output_dir ROOT/file/shards cannot be a folder'],
      ),
      (
          'source_is_none',
          'an4',
          ['--source_dir=ROOT/empty', '--output_dir=ROOT/out'],
          ['an4_train.fileids is missing'],
      ),
      (
          'no_split',
          'librispeech',
          ['--source_dir=ROOT', '--output_dir=ROOT/out', '--splits=no'],
          [("no split 'no'", 'set --splits')],
      ),
      ('number', 'an4', ['--partition_seed=-1'], ['--partition_seed=-1']),
      (
          'too_few_speakers',
          'synthetic_population',
          ['--output_dir=ROOT/out', '--num_dev_speakers=0'],
          [('num_speakers[dev]', 'found 0')],
      ),
  )
  def test_data_tools(self, tool, flags, expected):
    flags = [flag.replace('ROOT', self.root) for flag in flags]
    self.check(expected, f'data_tools.{tool}', *flags)

  @parameterized.named_parameters(
      ('repeats', 'execution', ['--repeats=0'], [('--repeats=0', 'positive')]),
      ('contexts', 'execution', ['--contexts=x'], ["contexts takes"]),
      ('rounds', 'full_size', ['--rounds=-1'], ['--rounds=-1']),
      (
          'figures',
          'full_size',
          ['--json=ROOT/file/x.json'],
          ['cannot be a folder'],
      ),
      ('figures_in_a_folder', 'execution', ['--json=ROOT'], ['is a folder']),
  )
  def test_benchmarks(self, benchmark, flags, expected):
    flags = [flag.replace('ROOT', self.root) for flag in flags]
    self.check(expected, f'benchmarks.{benchmark}', *flags)
