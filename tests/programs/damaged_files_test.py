"""Each file that a run or a conversion really leaves, damaged.

The names of files come from the folders' own listings, so that a new file needs
a reader that reports its damage, or a reason why nobody has to.
"""

from collections.abc import Callable
import contextlib
import functools
import io
import os
import pathlib
import re
import shutil
from typing import Any
from unittest import mock

from data_tools import shards
from tests import cases
from tests import fakes
from tests.programs import runs
from tff_asr import files
from tff_asr import launch
from tff_asr.data import client_data
from tff_asr.data import speakers
from tff_asr.data import split_summary
from tff_asr.decoding import language_model
from tff_asr.privacy import queries
from tff_asr.programs import federated
from tff_asr.programs import lm_tuning
from tff_asr.programs import public_data
from tff_asr.recognition import model_spec
from tff_asr.reports import runs as reports_runs
from tff_asr.storage import checkpoints
from tff_asr.storage import environment_fingerprint
from tff_asr.storage import model_file
from tff_asr.storage import run_dir
from tff_asr.storage import state_file


def _make_folder(path: pathlib.Path, unused_content: bytes) -> None:
  path.unlink()
  path.mkdir()


def _flip(path: pathlib.Path, content: bytes) -> None:
  """Changes a bit of the byte in the middle, which is a letter or a digit."""
  place = len(content) // 2
  path.write_bytes(
      content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
  )


_DAMAGES = {
    'cut': lambda path, content: path.write_bytes(content[: len(content) // 2]),
    'empty': lambda path, content: path.write_bytes(b''),
    'flip': _flip,
    'folder': _make_folder,
}
_TOKENS = {
    'build': 'tff_asr.text.tokenizer.CharTokenizer',
    'arguments': {'characters': 'ab '},
}
_SPEC = {
    'MODEL': {
        'build': 'tff_asr.models.ctc.build',
        'arguments': {
            'encoder': {
                'build': 'tff_asr.models.transformer.build',
                'arguments': dict(
                    num_blocks=1, dim=8, mlp_dim=16, num_heads=2
                ),
            },
            'tokenizer': _TOKENS,
        },
    },
    'PIPELINE': {
        'build': 'tff_asr.data.pipeline.Pipeline',
        'arguments': dict(
            tokenizer=_TOKENS,
            output_lengths={
                'function': 'tff_asr.models.subsampling.output_lengths_3x',
                'arguments': {},
            },
            max_batch_sec=20.0,
            max_utterance_sec=20.0,
        ),
    },
}


class DamagedFilesTest(cases.TestCase):

  def check_files(
      self,
      folder: str,
      read: Callable[[], Any],
      unnoticed: dict[str, str],
  ) -> None:
    """Each kind of damage to each file is reported, or a reason is given.

    Args:
      folder: The folder.
      read: Reads all that programs read of it.
      unnoticed: Patterns of 'KIND NAME', with the reason why it does not matter
        that this damage is not noticed.
    """
    read()
    paths = [each for each in pathlib.Path(folder).rglob('*') if each.is_file()]
    found = set()
    for path in paths:
      good = path.read_bytes()
      name = str(path.relative_to(folder))
      for kind, damage in _DAMAGES.items():
        if good == b'' and kind != 'folder':
          continue
        damage(path, good)
        with self.subTest(f'{kind} {name}'):
          try:
            with contextlib.redirect_stderr(io.StringIO()):
              # A configuration may be whole and of another run.
              is_noticed = self.check(
                  read,
                  named=folder if name == run_dir.CONFIG else path.name,
              )
          finally:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            path.write_bytes(good)
          reasons = [
              each for each in unnoticed if re.fullmatch(each, f'{kind} {name}')
          ]
          # What stands in the middle of a file depends on the lengths of its
          # numbers: a changed digit is not noticed, a changed name may be.
          if kind != 'flip' or not reasons:
            self.assertEqual(is_noticed, not reasons)
          found.update(reasons)
    # No reason that is not needed.
    self.assertEqual(found, set(unnoticed))
    read()

  def check(self, read: Callable[[], Any], *, named: str) -> bool:
    """Whether it was refused; fails unless in one line with the name."""
    try:
      read()
    except Exception as error:  # pylint: disable=broad-exception-caught
      self.assertTrue(launch.is_user_error(error), f'{error!r}')
      lines = launch.error_lines(error)
      self.assertNotIn('\n', ''.join(lines))
      self.assertIn(named, ' '.join(lines))
      return True
    return False

  def test_files_of_a_corpus(self):
    folder = self.path('corpus')
    spoken = [*fakes.examples('ann', 2), *fakes.examples('bob', 1)]
    fakes.write_examples(folder, [*spoken, spoken[0]])  # One is left out.
    speakers.write_attributes(folder, {'age': {'ann': ['teens']}})

    def read():
      client_data.verify(folder)
      speakers.read_attributes(client_data.load(folder).corpus)
      shards.read_fingerprints(folder)
      split_summary.read(folder)

    self.check_files(folder, read, {
        # For people; the same is in corpus.json, which `read` returns.
        r'.* summary\.json': 'no program reads it',
    })

  def test_files_of_a_run(self):
    run = self.path('run')
    data = client_data.load(fakes.write_split(
        self.path('private'), {'ann': 1, 'bob': 1, 'cai': 1, 'dee': 1}
    ))
    settings = runs.federated(
        data,
        build_query=functools.partial(
            queries.PerLayerClipSumQuery,
            l2_norm_clip=0.01,
            noise_multiplier=30.0,
        ),
    )
    configuration = 'PRIVATE_DIR = "private"\nSEED = 1\n'
    # Interrupted before its end, so that it still has its secrets.
    with mock.patch.object(
        checkpoints.StateManager,
        'erase_secrets',
        side_effect=ValueError('Stopped.'),
    ), self.assertRaisesRegex(ValueError, 'Stopped'):
      self.train(run, settings, configuration)
    secrets = os.path.join(run, run_dir.SECRETS)
    kept = pathlib.Path(secrets).read_bytes()
    self.train(run, settings, configuration)
    pathlib.Path(secrets).write_bytes(kept)
    files.write_json(os.path.join(run, run_dir.MODEL_SPEC), _SPEC)
    files.write_json(os.path.join(run, run_dir.DECODING), {'0' * 64: dict(
        dict.fromkeys(language_model.Weights._fields, 0.5)
    )})

    def read():
      run_dir.check_folder(run, configuration=configuration)
      environment_fingerprint.check(run)
      reports_runs.read([run])
      model_file.read(os.path.join(run, run_dir.MODEL))
      run_dir.read_ledger(run)
      run_dir.read_delta(run)
      public_data.read(run)
      lm_tuning.read(run)
      model_spec.read(run)
      states = checkpoints.state_paths(os.path.join(run, 'state'))
      for path in [*states.values(), secrets]:
        state_file.read_leaves(path)

    self.check_files(run, read, {
        r'(cut|empty|flip) run\.lock': (
            'it names a process, for a message'
        ),
        r'(cut|flip) metrics\.csv': 'as of the next files',
        r'.* tensorboard/.*': 'TensorBoard alone reads it, and skips damage',
        r'(cut|empty|flip) privacy_report\.txt': (
            'for people: privacy_report.json says the same'
        ),
        # A changed digit of a text without a checksum is another number.
        r'flip (machine|results|privacy_report|trained_on|decoding)\.json': (
            'docs/reliability.md says what follows'
        ),
    })

  def train(
      self, run: str, settings: dict[str, Any], configuration: str
  ) -> None:
    runs.train(
        federated.FederatedTraining,
        output_dir=run,
        num_rounds=2,
        **settings | dict(configuration=configuration),
    )
