import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import soundfile

from data_tools import an4


def _write_audio(path: pathlib.Path, **kwargs) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  soundfile.write(path, np.arange(-800, 800, dtype=np.int16), 16000, **kwargs)


class An4Test(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.source = pathlib.Path(
        self.enterContext(tempfile.TemporaryDirectory())
    )
    (self.source / 'etc').mkdir()
    self.write_list(
        ['an4_clstk/fash/an251-fash-b', 'an4_clstk/mkem/cen6-mkem-b']
    )
    self.write_transcripts(
        ['<s> YES </s> (an251-fash-b)', 'RUBOUT T G (cen6-mkem-b)']
    )
    for name in ('fash/an251-fash-b', 'mkem/cen6-mkem-b'):
      _write_audio(self.source / f'wav/an4_clstk/{name}.sph', format='NIST')

  def write_list(self, lines):
    path = self.source / 'etc' / 'an4_train.fileids'
    path.write_text('\n'.join(lines) + '\n')

  def write_transcripts(self, lines):
    path = self.source / 'etc' / 'an4_train.transcription'
    path.write_text('\n'.join(lines) + '\n')

  def list(self):
    return an4.list_utterances(self.source, split='train')

  def check_problem(self, reason, detail, num_left=1):
    listed, (problem,), _ = self.list()
    self.assertLen(listed, num_left)
    self.assertEqual(problem.reason, reason)
    self.assertRegex(problem.detail, detail)

  def test_lists_utterances(self):
    self.assertEqual(
        [
            (u.client_id, u.utterance_id, u.transcript)
            for u in self.list().utterances
        ],
        [
            ('fash', 'an251-fash-b', 'yes'),
            ('mkem', 'cen6-mkem-b', 'rubout t g'),
        ],
    )

  def test_missing_parts(self):
    with self.assertRaisesRegex(ValueError, 'no/where is not a folder'):
      an4.list_utterances('no/where', split='train')
    with self.assertRaisesRegex(ValueError, "split must be .* found 'dev'"):
      an4.list_utterances(self.source, split='dev')
    with self.assertRaisesRegex(ValueError, 'an4_test.fileids is missing'):
      an4.list_utterances(self.source, split='test')
    (self.source / 'wav/an4_clstk/fash/an251-fash-b.sph').unlink()
    self.check_problem('has no audio file', 'an251-fash-b.sph is listed but')

  def test_lists_that_disagree(self):
    self.write_transcripts(['YES (an251-fash-b)'])
    self.check_problem('has no transcript', 'cen6-mkem-b has no transcript')
    self.write_transcripts(
        ['A (an251-fash-b)', 'B (cen6-mkem-b)', 'C (more-mkem-b)']
    )
    self.check_problem('has no audio file', 'list utterance more-mkem-b', 2)
    self.write_transcripts(
        ['A (an251-fash-b)', 'B (cen6-mkem-b)', 'C (cen6-mkem-b)']
    )
    self.check_problem('occurs twice', 'cen6-mkem-b occurs twice', 2)

  def test_bad_lines(self):
    texts = ['A (an251-fash-b)', 'B (cen6-mkem-b)']
    self.write_transcripts([*texts, '<s> YES </s>'])
    self.check_problem('has a line that cannot be read', 'cannot read .*YES', 2)
    self.write_transcripts(['5 (an251-fash-b)', 'B (cen6-mkem-b)'])
    self.check_problem(
        'has characters outside the tokens', "an251-fash-b: .*'5'"
    )
    self.write_list(['an251-fash-b', 'an4_clstk/mkem/cen6-mkem-b'])
    self.write_transcripts(['B (cen6-mkem-b)'])
    self.check_problem(
        'has a line that cannot be read', 'is not FOLDER/SPEAKER/NAME'
    )


if __name__ == '__main__':
  absltest.main()
