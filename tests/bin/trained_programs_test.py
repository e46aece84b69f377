"""The programs of bin/ on a trained run, each in this process."""

import ast
import asyncio
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import tempfile
import types
from unittest import mock

from absl.testing import absltest
import numpy as np
import pytest
import soundfile

from tests.bin import in_process
from tests.bin import programs
from tests.decoding import language_model_test
from tests import fakes
from tests import seen
from tff_asr.privacy import ledger
from tff_asr.recognition import export
from tff_asr.reports import demo
from tff_asr.storage import model_file
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

_CLIENTS = {'ann': 2, 'bob': 3}
_SECRET = bytes(range(32))
_SNIPPET = re.compile('```python\n(.*?)```', re.DOTALL)


class TrainedProgramsTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.shards = fakes.write_split(os.path.join(cls.root, 'shards'), _CLIENTS)
    cls.run_dir = os.path.join(cls.root, 'run')
    dev = fakes.write_split(os.path.join(cls.root, 'dev'), {'cai': 1})
    cls.trained = cls.run_configured(
        'train_central',
        'seed',
        f'TRAIN_DIR = {cls.shards!r}',
        f'DEV_DIR = {dev!r}',
        'NUM_STEPS = 2',
        flags=[f'--output_dir={cls.run_dir}'],
    )
    cls.decoded = cls.run_configured(
        'evaluate',
        'evaluate',
        f'TEST_DIR = {cls.shards!r}',
        f'RUNS = [{cls.run_dir!r}]',
    )
    # As in a run that will be resumed.
    state_file.write(
        os.path.join(cls.run_dir, run_dir.SECRETS),
        {'key': np.frombuffer(_SECRET, np.uint8)},
    )
    with open(os.path.join(cls.run_dir, 'test.json'), encoding='utf-8') as f:
      cls.evaluated = {
          each['utterance_id']: each['text']
          for each in json.load(f)['hypotheses']
      }
    cls.audio = os.path.join(cls.root, 'audio')
    os.mkdir(cls.audio)
    for client_id, count in _CLIENTS.items():
      for example in fakes.examples(client_id, count):
        soundfile.write(
            os.path.join(cls.audio, f'{example["utterance_id"]}.flac'),
            example['waveform'], 16000,
        )

  @staticmethod
  def run_configured(
      program: str, experiment: str, *settings: str, flags=()
  ) -> programs.Finished:
    finished = in_process.run(
        f'bin/{program}.py',
        *flags,
        f'--gin_file=gin/experiments/quickstart_{experiment}.gin',
        *(f'--gin_param={each}' for each in (*programs.TINY, *settings)),
    )
    assert not finished.code, finished.stderr
    return finished

  def test_training_and_evaluation_show_their_progress_and_results(self):
    self.assertRegex(
        self.trained.stdout,
        r'^dev WER .*%, CER .*% \(step 2\)\n'
        r'Written to .*/run: model, metrics\.\n'
        r'Next: python bin/transcribe\.py --run=.*/run RECORDING\.wav\n$',
    )
    for line in self.trained.stderr.splitlines():
      self.assertRegex(line, r'^central: step [12] of 2, loss ')
    self.assertRegex(
        self.decoded.stdout,
        r'run: WER \d+\.\d\d % \(\d+\.\d\d to \d+\.\d\d\), CER .* '
        r'\(TER .* %\) of [\d,]+ words of 2',
    )
    for line in self.decoded.stderr.splitlines():
      self.assertRegex(line, r'^evaluate: utterance [1-5] of 5')

  def test_the_pages_notebook_snippet_is_a_whole_run(self):
    page = _SNIPPET.search((programs.ROOT / 'README.md').read_text('utf-8'))[1]
    private = fakes.write_split(
        os.path.join(self.root, 'private'), {'dan': 1, 'eve': 1, 'fay': 1}
    )
    output_dir = os.path.join(self.root, 'mine')
    tiny = [
        *programs.TINY,
        programs.FROZEN,
        f'PRIVATE_DIR = {private!r}',
        f'DEV_DIR = {os.path.join(self.root, "dev")!r}',
        f'INIT_FROM_RUN = {self.run_dir!r}',
        'COHORT_SIZE = 2',
        'NUM_ROUNDS = 1',
        'TARGET_EPSILON = None',
    ]
    for shown, given in (("['NUM_ROUNDS = 20']", tiny),
                         ("'runs/mine'", output_dir)):
      self.assertEqual(page.count(shown), 1)
      page = page.replace(shown, repr(given))
    # As IPython runs a cell.
    code = compile(page, 'README.md', 'exec', ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    cell = {}
    with contextlib.redirect_stdout(io.StringIO()), (
        contextlib.redirect_stderr(io.StringIO())
    ):
      asyncio.run(types.FunctionType(code, cell)())
    self.assertEqual(cell['results']['privacy']['rounds'], 1)
    self.assertLen(ledger.read(f'{output_dir}/ledger.jsonl').rounds, 1)
    # It began with the seed's weights: those that are frozen are still there.
    seed, after = (
        model_file.read(os.path.join(folder, run_dir.MODEL))
        for folder in (self.run_dir, output_dir)
    )
    moved = [name for name in seed if np.any(after[name] != seed[name])]
    self.assertEqual({name.split('/')[0] for name in moved}, {'head'})

  def run_program(self, program: str, *arguments: str) -> programs.Finished:
    finished = in_process.run(f'bin/{program}.py', *arguments)
    self.assertEqual(finished.code, 0, finished.stderr)
    return finished

  def test_transcribe_gives_the_hypotheses_of_the_evaluation(self):
    finished = self.run_program(
        'transcribe', f'--run={self.run_dir}', '--format=json', self.audio
    )
    transcripts = {
        os.path.splitext(os.path.basename(each['file']))[0]: each['text']
        for each in json.loads(finished.stdout)
    }
    self.assertEqual(transcripts, self.evaluated)
    self.assertNotEmpty(''.join(transcripts.values()))

  def assert_transcribes(self, folder: str) -> None:
    path = os.path.join(self.audio, 'ann-0.flac')
    transcripts = self.run_program('transcribe', f'--run={folder}', path)
    self.assertEqual(transcripts.stdout, f'{self.evaluated["ann-0"]}\n')

  def test_weights_and_parts_alone_transcribe_and_nothing_else_goes_out(self):
    output_dir = os.path.join(self.root, 'copied')
    os.mkdir(output_dir)
    export.copy_model(self.run_dir, output_dir=output_dir)
    self.assertCountEqual(
        os.listdir(output_dir), ['model.safetensors', 'model_spec.json']
    )
    self.assertEmpty(seen.files_with([_SECRET], output_dir))
    self.assert_transcribes(output_dir)
    path = os.path.join(output_dir, 'model.safetensors')
    for place in (0.01, 0.99):
      fakes.damage(path, place)
      finished = in_process.run(
          'bin/transcribe.py', f'--run={output_dir}', path
      )
      fakes.damage(path, place)
      self.assertEqual(finished.code, 1)
      self.assertRegex(
          finished.stderr, '^error: The file .* is damaged: .*\n$'
      )

  def test_transcribe_takes_flags_after_files(self):
    path = os.path.join(self.audio, 'ann-0.flac')
    finished = self.run_program(
        'transcribe', path, f'--run={self.run_dir}', '--window_sec=15'
    )
    self.assertEqual(finished.stdout, f'{self.evaluated["ann-0"]}\n')

  def test_transcribe_prints_the_others_before_it_names_bad_files(self):
    bad = os.path.join(self.root, 'bad.wav')
    pathlib.Path(bad).write_bytes(b'x')
    path = os.path.join(self.audio, 'ann-0.flac')
    finished = in_process.run(
        'bin/transcribe.py', f'--run={self.run_dir}', bad, path
    )
    self.assertEqual(finished.code, 1)
    self.assertEqual(finished.stdout, f'{path}\t{self.evaluated["ann-0"]}\n')
    *progress, error = finished.stderr.splitlines()
    self.assertRegex(error, '^error: .*bad.wav: is not readable audio')
    for line in progress:
      self.assertStartsWith(line, 'transcribe: file ')

  def test_report_is_written_where_it_says(self):
    output_dir = os.path.join(self.root, 'report')
    finished = self.run_program(
        'report', self.run_dir, f'--output_dir={output_dir}', '--num_worst=1'
    )
    path = finished.stdout.splitlines()[-1]
    self.assertEqual(path, os.path.join(output_dir, 'report.html'))
    with open(path, encoding='utf-8') as f:
      self.assertIn('Utterances with the most errors', f.read())

  def test_demo_gives_the_transcripts_of_the_evaluation(self):
    path = os.path.join(self.audio, 'ann-0.flac')
    copy = shutil.copytree(self.run_dir, os.path.join(self.root, 'copy'))
    transcripts = []

    def serve(server):
      recording = pathlib.Path(path).read_bytes()
      answer = server.transcribe(recording, reference='')
      transcripts.extend(each['text'] for each in answer['hypotheses'])

    with mock.patch.object(demo.Server, 'serve_forever', serve):
      finished = self.run_program('demo', self.run_dir, copy, '--port=0')
    self.assertRegex(finished.stdout, r'Open http://127.0.0.1:\d+/\?token=\S{43} in a bro')
    self.assertEqual(transcripts, [self.evaluated['ann-0']] * 2)
    finished = in_process.run(
        'bin/demo.py', f'{self.run_dir},{copy}', '--name=both'
    )
    self.assertIn('error: both has several runs', finished.stderr)

  @language_model_test.needs_packages
  def test_cost_of_a_beam_search_is_that_of_the_evaluation(self):
    words, figures = (
        os.path.join(self.root, name) for name in ('words.arpa', 'figures.json')
    )
    pathlib.Path(words).write_text(language_model_test.ARPA)
    finished = in_process.run(
        'benchmarks.decoding', f'--run={self.run_dir}', '--repeats=2',
        f'--shards={self.shards}', f'--language_model={words}',
        f'--json={figures}',
    )
    self.assertEqual(finished.code, 0, finished.stderr)
    self.assertIn('Decoding 5 utterances', finished.stdout)
    found = json.loads(pathlib.Path(figures).read_text())
    for ratios in found['ratios'], found['cpu_ratios']:
      self.assertEqual(ratios['greedy'], [1, 1])
      self.assertLen(ratios['beam 32'], 2)
    seconds = found['seconds']
    for ratio, search, greedy in zip(
        found['ratios']['beam 32'], seconds['beam 32'], seconds['greedy'],
        strict=True,
    ):
      self.assertAlmostEqual(ratio, search / greedy)
    with open(os.path.join(self.run_dir, 'test.json'), encoding='utf-8') as f:
      evaluated = json.load(f)['word_error_rate']
    self.assertAlmostEqual(found['word_error_rates']['greedy'], evaluated)

  @pytest.mark.slow
  def test_export_checks_and_writes_a_card(self):
    output_dir = os.path.join(self.root, 'exported')
    finished = self.run_program(
        'export', f'--run={self.run_dir}', f'--output_dir={output_dir}',
        f'--data={self.shards}', '--num_utterances=2',
    )
    first, *_ = finished.stdout.splitlines()
    self.assertRegex(first, '^saved_model: .* in 2 of 2 utterances')
    card = pathlib.Path(output_dir, 'model_card.md').read_text()
    self.assertIn('# Model card: run', card)
    # The secrets of a run that will be resumed are not exported.
    self.assertLen(seen.files_with([_SECRET], self.run_dir), 1)
    self.assertEmpty(seen.files_with([_SECRET], output_dir))
    self.assert_transcribes(output_dir)
    self.assertRegex(card, r'\| shards \| training +\| 2 +\| 5 +\|')
