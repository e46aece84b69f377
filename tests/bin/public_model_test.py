"""Programs with a public model as it was published; the decoder is a fake."""

import json
import os
import pathlib

import numpy as np
import soundfile

from tests import cases
from tests import fakes
from tests.bin import in_process
from tests.bin import programs
from tests.recognition import fake_whisper
from tests.reports import run_folders


class PublicModelTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(fake_whisper.installed())
    self.model = fake_whisper.write(self.path('model'))
    self.audio = self.path('a.wav')
    soundfile.write(self.audio, np.zeros(24000), 16000)

  def run_program(self, name: str, *arguments: str) -> programs.Finished:
    finished = in_process.run(f'bin/{name}.py', *arguments)
    self.assertEqual(finished.code, 0, finished.stderr)
    return finished

  def test_transcribe(self):
    flags = (f'--pretrained={self.model}', self.audio)
    self.assertEqual(
        self.run_program('transcribe', *flags).stdout, '1.5 Seconds.\n'
    )
    (found,) = json.loads(
        self.run_program(
            'transcribe', *flags, '--format=json', '--language=de'
        ).stdout
    )
    self.assertEqual(
        found,
        {
            'file': self.audio, 'seconds': 1.5, 'text': '1.5 Seconds.',
            'words': [
                {'text': '1.5', 'start_sec': 0.0, 'end_sec': 0.5,
                 'confidence': 0.25},
                {'text': 'Seconds.', 'start_sec': 0.5, 'end_sec': 1.0,
                 'confidence': 0.25},
            ],
            'language': 'de',
        },
    )
    self.assertEqual(
        self.run_program('transcribe', *flags, '--format=srt').stdout,
        '1\n00:00:00,000 --> 00:00:01,000\n1.5 Seconds.\n',
    )

  def test_evaluate_writes_what_report_shows_beside_a_run(self):
    waveform = np.int16([1000, -1000] * 8000)
    spoken = [
        dict(client_id=client_id, utterance_id=client_id, waveform=waveform,
             transcript=transcript)
        for client_id, transcript in (('ann', '1 seconds'), ('bob', '1 hour'))
    ]
    data = fakes.write_examples(self.path('test'), spoken)
    folder = self.path('untrained')
    finished = self.run_program(
        'evaluate', f'--pretrained={self.model}', f'--data={data}',
        f'--output_dir={folder}',
    )
    # 'Seconds.' has a capital and a full stop, which do not count.
    self.assertRegex(
        finished.stdout,
        r'^/.*/model: WER 25\.00 % \(0\.00 to 50\.00\), CER .* % of 4 words of '
        r'2 speakers, normalised by case, punctuation\n$',
    )
    with open(os.path.join(folder, 'test.json'), encoding='utf-8') as f:
      self.assertEqual(json.load(f)['public_model'], self.model)
    run = run_folders.write(
        self.path('run'), errors={'ann': (0, 2), 'bob': (0, 2)}
    )
    path = pathlib.Path(run, 'test.json')
    # Rates under other rules are not compared.
    path.write_text(
        json.dumps(
            json.loads(path.read_text())
            | {'normalization': ['case', 'punctuation']}
        )
    )
    table = self.run_program(
        'report', folder, run, f'--output_dir={self.path("page")}'
    ).stdout
    # A public model has no rounds; the run, without errors, gains 25 points.
    for cell in 'public model', '25.0', '-25.0 (-50.0 to +0.0)':
      self.assertIn(f' {cell} ', table)
    self.assertTrue(os.path.exists(self.path('page', 'report.html')))

  def check_refused(self, expected: str, program: str, *arguments: str):
    finished = in_process.run(f'bin/{program}.py', *arguments)
    self.assertEqual(finished.code, 1)
    self.assertRegex(finished.stderr, f'^error: .*{expected}.*\n$')

  def test_flags_that_do_not_go_together(self):
    public = f'--pretrained={self.model}'
    for expected, *arguments in (
        ('--hotword needs a model of CTC', public, '--hotword=x', self.audio),
        ('Exactly one of .*run.*pretrained', self.audio),
        ('At most one of .*run.*pretrained|Exactly one of', public, '--run=x',
         self.audio),
        ('trust_code', public, '--trust_code=x', self.audio),
        ('language', '--run=x', '--language=de', self.audio),
    ):
      self.check_refused(expected, 'transcribe', *arguments)
    for expected, *arguments in (
        ('give --pretrained, and no', '--data=x'),
        ('give --pretrained, and no', public, '--data=x', '--gin_file=x.gin'),
        ('need --data', '--language=de', '--gin_file=x.gin'),
        ('need --data', '--output_dir=x', '--gin_file=x.gin'),
        ('x is not a folder', public, '--data=x'),
    ):
      self.check_refused(expected, 'evaluate', *arguments)
