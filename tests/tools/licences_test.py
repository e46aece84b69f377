"""NOTICE is up to date, and no core dependency is copyleft."""

from absl.testing import parameterized

from tools import layers
from tools import licences


class LicencesTest(parameterized.TestCase):

  def test_notice_names_the_licences_of_what_is_pinned(self):
    pinned = (layers.ROOT / 'requirements.txt').read_text('utf-8')
    found = licences.licences(pinned)
    self.assertIn('tensorflow-federated', found)
    self.assertEqual([*licences.problems(found)], [])
    self.assertEqual(
        (layers.ROOT / 'NOTICE').read_text('utf-8'),
        licences.notice(found),
        'run python -m tools.licences',
    )

  @parameterized.parameters(
      ('GPL-3.0-or-later', 1),
      ('GNU Affero General Public License v3', 1),
      ('Mozilla Public License 2.0 (MPL 2.0)', 1),
      ('', 1),
      ('Apache 2.0', 0),
      ('BSD-3-Clause', 0),
      ('MIT AND PSF-2.0', 0),
  )
  def test_copyleft_and_nothing_are_refused(self, stated, count):
    self.assertLen([*licences.problems({'some-package': stated})], count)

  def test_an_accepted_package_is_refused_under_other_terms(self):
    self.assertEmpty([*licences.problems({'soxr': 'LGPL-2.1-or-later'})])
    self.assertLen([*licences.problems({'soxr': 'GPL-3.0-only'})], 1)

  def test_generated_speech_is_no_core_dependency(self):
    self.assertEqual(
        licences.licences('# numpy==1\nespeakng-loader==0.2.4 \\\n  --hash=x\n'),
        {'espeakng-loader': ''},
    )
