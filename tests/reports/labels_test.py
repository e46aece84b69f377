from absl.testing import absltest

from tff_asr.reports import labels


def _parse(*texts):
  return labels.parse('run', texts, form='LABEL=FOLDER')


class LabelsTest(absltest.TestCase):

  def test_order_is_kept_and_labels_may_hold_equals_signs(self):
    self.assertEqual(
        list(_parse('z = .5=runs/b', 'a=runs/a').items()),
        [('z = .5', 'runs/b'), ('a', 'runs/a')],
    )

  def test_what_is_not_labelled_is_named(self):
    for text in ('runs/a', '=runs/a'):
      with self.assertRaisesRegex(
          ValueError, f"^--run must look like LABEL=FOLDER, found '{text}'.$"
      ):
        _parse('a=runs/a', text)

  def test_a_label_twice_is_an_error(self):
    with self.assertRaisesRegex(ValueError, "^--run has the label 'a' twice.$"):
      _parse('a=runs/a', 'a=runs/b')


if __name__ == '__main__':
  absltest.main()
