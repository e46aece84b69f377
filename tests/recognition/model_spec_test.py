"""Tests of tff_asr.recognition.model_spec."""

import json
import os
import pathlib
from typing import Any
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import cases
from tff_asr import config
from tff_asr.models import ctc
from tff_asr.pretrained import features
from tff_asr.recognition import model_spec
from tff_asr.recognition import recognizer
from tff_asr.storage import run_dir
from tff_asr.text import tokenizer
from tools.pretrained_parity import random_folders

_FUNCTION = 'tff_asr.models.subsampling.output_lengths_3x'


def _built(name: str, **given) -> dict[str, Any]:
  return {'build': name, 'arguments': given}


def _content(*, tokens: Any = None, **changes) -> dict[str, Any]:
  """The model_spec.json of a small run, with changes of the encoder's arguments."""
  tokens = tokens or _built(
      'tff_asr.text.tokenizer.CharTokenizer', characters='ab '
  )
  encoder = _built(
      'tff_asr.models.transformer.build',
      **dict(num_blocks=1, dim=8, mlp_dim=16, num_heads=2) | changes,
  )
  return {
      'MODEL': _built(
          'tff_asr.models.ctc.build', encoder=encoder, tokenizer=tokens
      ),
      'PIPELINE': _built(
          'tff_asr.data.pipeline.Pipeline',
          tokenizer=tokens,
          output_lengths={'function': _FUNCTION, 'arguments': {}},
          max_batch_sec=20.0,
          max_utterance_sec=20.0,
      ),
  }


class ModelSpecTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.run_dir = self.path('run')
    self.owned = self.path('owned')
    os.mkdir(self.run_dir)

  def write(self, name: str, content: str) -> None:
    path = self.path(name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pathlib.Path(path).write_text(content)

  def write_spec(self, content: Any) -> None:
    self.write('run/model_spec.json', json.dumps(content))

  def assert_refused(self, message: str, **options) -> None:
    with self.assertRaisesRegex(ValueError, message) as caught:
      model_spec.read(self.run_dir, **options)
    self.assertNotIn('\n', str(caught.exception))
    self.assertLess(len(str(caught.exception)), 400)
    self.assertFalse(os.path.exists(self.owned))

  @parameterized.parameters(
      'transformer_toy', 'conformer_toy', 'conv'
  )
  def test_a_configuration_is_built_again_from_its_json(self, name):
    files = ('experiments/quickstart_seed', f'models/{name}')
    settings = ["TRAIN_DIR = ''", "DEV_DIR = ''", "LABEL_BOUNDARY = ' '"]
    bind = lambda function: config.bind(
        function,
        gin_files=[f'gin/{each}.gin' for each in files],
        gin_params=settings,
    )
    built = bind(ctc.build)()
    self.write('run/model_spec.json', config.model_spec('MODEL', 'PIPELINE'))
    model, pipeline = model_spec.read(self.run_dir)
    self.assertEqual(model.specs, built.specs)
    self.assertEqual(model.loss_kernel, built.loss_kernel)
    # The macros of gin/experiments/quickstart_common.gin.
    self.assertEqual(pipeline.max_batch_sec, 20.0)
    self.assertEqual(pipeline.max_padding, 1.0)
    self.assertEqual(
        pipeline.tokenizer.encode(['a']).to_list(), [[0, 2, 0]]
    )
    self.assertEqual(
        pipeline.output_lengths(100), model.encoder.output_lengths(100)
    )

  @parameterized.parameters('adapters', 'head', 'last_blocks', 'lora', 'whole')
  def test_a_public_model_is_built_from_its_name_or_a_bundle(self, name):
    self.enterContext(mock.patch.dict(
        os.environ, {features.CACHE_VARIABLE: self.path('cache')}
    ))
    folder = self.path('public')
    random_folders.write(folder, random_folders.TINY['whisper'])
    built = config.bind(
        ctc.build,
        gin_files=[
            'gin/experiments/quickstart_seed.gin',
            f'gin/models/public_{name}.gin',
        ],
        gin_params=[
            "TRAIN_DIR = ''",
            "DEV_DIR = ''",
            f'PRETRAINED = {folder!r}',
            'MAX_UTTERANCE_SEC = 0.1',
            *(['LORA_RANK = 2'] if name == 'lora' else []),
        ],
    )()
    spec = json.loads(config.model_spec('MODEL', 'PIPELINE'))
    self.write_spec(spec)
    model, pipeline = model_spec.read(self.run_dir)
    self.assertEqual(model.specs.keys(), built.specs.keys())
    public = pipeline.front_end.public_model
    self.assertEqual(public.name, 'public')
    self.assertEqual(model_spec.public_models(spec), {folder})
    self.assertEmpty(model_spec.public_models(_content()))
    # The bundle lies in the run's folder, and the name is gone.
    bundled = model_spec.with_bundled(spec)
    self.assertNotIn(folder, json.dumps(bundled))
    self.write_spec(bundled)
    os.rename(folder, os.path.join(self.run_dir, 'public_model'))
    model, pipeline = model_spec.read(self.run_dir)
    self.assertEqual(model.specs.keys(), built.specs.keys())
    self.assertEqual(pipeline.front_end.public_model.sha256, public.sha256)

  def test_a_bundle_lies_in_the_folder_itself(self):
    name = 'tff_asr.pretrained.features.of_model'
    for folder in ('..', '/etc', 'other', 1):
      content = _content()
      content['PIPELINE']['arguments']['front_end'] = {
          'build': name, 'arguments': {'name': {'bundled': folder}}
      }
      self.write_spec(content)
      self.assert_refused('neither a builder nor a value')

  def test_a_run_folder_with_sentence_pieces_transcribes(self):
    # As data_tools.sentence_pieces writes it.
    self.write('pieces.gin', (
        'from __gin__ import dynamic_registration\n'
        'from tff_asr.text import tokenizer\n'
        'TOKENIZER = @tokenizer.SentencePieceTokenizer()\n'
        'tokenizer.SentencePieceTokenizer.pieces = \\\n'
        "    {'▁': -3.0, 'a': -4.0,\n     'b': -4.0, '▁ab': -2.0}\n"
    ))
    files = ('experiments/quickstart_seed', 'models/transformer_toy')
    built = config.bind(
        ctc.build,
        gin_files=[
            *(f'gin/{each}.gin' for each in files), self.path('pieces.gin')
        ],
        gin_params=["TRAIN_DIR = ''", "DEV_DIR = ''", 'DIM = 8', 'MLP_DIM = 8'],
    )()
    weights = built.initialize(tf.constant([1, 2]))
    # The fourth piece, ' ab', in each frame.
    weights['head/bias'] = tf.constant([0.0, 0.0, 0.0, 100.0, 0.0])
    with run_dir.RunDir(
        self.run_dir,
        configuration=config.text(),
        model_spec=config.model_spec('MODEL', 'PIPELINE'),
    ) as folder:
      identity = tokenizer.SentencePieceTokenizer(
          {'▁': -3.0, 'a': -4.0, 'b': -4.0, '▁ab': -2.0}
      ).identity
      folder.write_model(weights, tokens=identity)
    # A run's digest covers the scores.
    self.assertRegex(config.text(), r"'▁ab': -2\.0")
    recognize = recognizer.load(run=self.run_dir)
    (found,) = recognize([('tone', np.full(16000, 100, np.int16))])
    self.assertEqual(found.text, 'ab')
    (word,) = found.words
    self.assertEqual((word.text, word.start_sec), ('ab', 0.0))

  def test_a_configuration_without_a_model_has_no_spec(self):
    self.write('text.gin', (
        'from __gin__ import dynamic_registration\n'
        'from tff_asr.text import tokenizer\n'
        "tokenizer.for_language.language = 'en'\n"
    ))
    config.bind(
        tokenizer.for_language,
        gin_files=[self.path('text.gin')],
    )
    self.assertEqual(config.model_spec('MODEL', 'PIPELINE'), '')

  @parameterized.parameters(
      # Each wrote the file when config.gin was parsed by transcribe and export.
      'import evil\n',
      'from evil import nothing\n',
      "include 'evil.gin'\n",
      'import os\nMODEL = @os.system()\nos.system.command = "touch {owned}"\n',
      'import os\nos.system.command = "touch {owned}"\nA = @x/os.system()\n'
      'MODEL = %A\n',
      'import builtins\nMODEL = @builtins.exec()\n'
      'builtins.exec.source = "open({owned!r}, \'w\')"\n',
      'from tff_asr import files\nMODEL = @files.write_text()\n'
      'files.write_text.path = {owned!r}\nfiles.write_text.text = ""\n',
  )
  def test_the_configuration_of_a_run_is_never_parsed(self, text):
    self.write('evil.py', f'open({self.owned!r}, "w")\n')
    self.write('evil.gin', 'import evil\n')
    head = 'from __gin__ import dynamic_registration\n'
    end = '\nPIPELINE = None\n'
    self.write('run/config.gin', head + text.format(owned=self.owned) + end)
    os.chdir(self.root)
    self.addCleanup(os.chdir, os.path.dirname(__file__))
    with self.assertRaisesRegex(ValueError, 'run has no model_spec.json: is it'):
      recognizer.load(run=self.run_dir)
    self.write_spec(_content())
    with self.assertRaisesRegex(ValueError, 'run contains no trained model'):
      recognizer.load(run=self.run_dir)
    self.assertFalse(os.path.exists(self.owned))

  @parameterized.parameters(
      'os.system',
      'posix.system',
      'builtins.exec',
      'exec',
      'evil.build',
      'gin.config.parse_config_file',
      'importlib.import_module',
      'tff_asr.files.write_text',
      'tff_asr.models.ctc.math.sqrt',
      'tff_asr.models.ctc.build.__globals__',
      'scope/tff_asr.models.ctc.build',
      '@tff_asr.models.ctc.build',
      '%MODEL',
      '',
      '.',
      '..evil',
      'x' * 100_000,
  )
  def test_builders_outside_the_allow_list_are_refused(self, name):
    self.write('evil.py', f'open({self.owned!r}, "w")\n')
    for kind in ('build', 'function'):
      content = _content()
      content['PIPELINE']['arguments']['augment'] = {
          kind: name, 'arguments': {'command': f'touch {self.owned}'}
      }
      self.write_spec(content)
      self.assert_refused('model_spec.json: .* is not a builder of this package, and')

  @parameterized.named_parameters(
      ('zero', dict(dim=0), 'dim'),
      ('name', dict(size=3), "unexpected keyword argument 'size'"),
      ('argument', dict(dim=_built(_FUNCTION)), 'missing 1 required'),
      ('object', dict(dim={'x': 1}), 'is neither a builder nor a value'),
  )
  def test_arguments_that_a_builder_does_not_take_are_refused(
      self, changes, message
  ):
    self.write_spec(_content(**changes))
    self.assert_refused(f'model_spec.json: .*{message}')

  @parameterized.parameters(
      ('', 'Expecting value'),
      ('[' * 200_000, 'it is nested too deeply'),
      ('[]', 'it has no MODEL and PIPELINE'),
      ('{"MODEL": 1, "PIPELINE": 1}', 'its PIPELINE is not a pipeline'),
  )
  def test_a_damaged_file_is_refused(self, text, message):
    self.write('run/model_spec.json', text)
    self.assert_refused(f'model_spec.json.*{message}')

  def test_a_model_must_be_a_model(self):
    content = _content()
    content['MODEL'] = content['PIPELINE']
    self.write_spec(content)
    self.assert_refused('model_spec.json: its MODEL is not a CTC model')

  def test_a_run_of_speaker_gradients_is_read(self):
    config.bind(
        ctc.build,
        gin_files=[
            'gin/experiments/quickstart_federated_dp.gin',
            'gin/programs/speaker_gradients.gin',
        ],
    )
    self.write('run/model_spec.json', config.model_spec('MODEL', 'PIPELINE'))
    _, pipeline = model_spec.read(self.run_dir)
    self.assertEqual(pipeline.chunk_size, 8)

  def test_a_pre_trained_encoder_cannot_transcribe(self):
    content = _content()
    for built in content.values():
      built['arguments']['tokenizer'] = None
    self.write_spec(content)
    self.assert_refused('is a pre-trained encoder without a CTC head: fine-tune it')

  def test_code_runs_where_the_user_trusts_its_folder(self):
    module = f'{self.id().rpartition(".")[2]}_mine'
    self.write(f'code/{module}.py', (
        'from os import getcwd\n'
        'from tff_asr.models import transformer\n'
        'def encoder(*, dim: int):\n'
        '  return transformer.build(\n'
        '      num_blocks=1, dim=dim, mlp_dim=4, num_heads=2\n'
        '  )\n'
    ))
    code = self.path('code')
    content = _content()
    given = content['MODEL']['arguments']
    given['encoder'] = _built(f'{module}.encoder', dim=8)
    self.write_spec(content)
    self.assert_refused(f'{module}.encoder is not a builder .*trust_code=FOLDER')
    model, _ = model_spec.read(self.run_dir, trust_code=code)
    self.assertEqual(model.encoder.output_dim, 8)
    # What the module imports is not its own, and other modules stay refused.
    for name in (
        f'{module}.getcwd', f'{module}.os.getcwd', f'{module}.nothing',
        'os.getcwd', 'numpy.zeros', 'nothing.encoder',
    ):
      given['encoder'] = _built(name)
      self.write_spec(content)
      self.assert_refused('nor a function that a module in', trust_code=code)
