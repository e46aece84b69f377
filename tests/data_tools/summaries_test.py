from absl.testing import absltest

from data_tools import summaries


class SummariesTest(absltest.TestCase):

  def test_description_tells_notices_and_drops(self):
    text = summaries.describe(
        'dev',
        {
            'num_clients': 2,
            'num_utterances': 7,
            'hours': 0.5,
            'minutes_per_client': {'min': 10, 'mean': 15, 'std': 5, 'max': 20},
            'dropped': {'is truncated': 3},
            'notices': ['2 files of 48000 Hz were resampled to 16000 Hz'],
        },
    )
    self.assertEqual(
        text,
        'dev: 2 speakers, 7 utterances, 0.50 h, 15.0 minutes a speaker (10.0 to'
        ' 20.0)\n'
        '  2 files of 48000 Hz were resampled to 16000 Hz\n'
        '  3 left out: is truncated (see dropped.tsv)',
    )


if __name__ == '__main__':
  absltest.main()
