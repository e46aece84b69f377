"""Tests that the files and names in CONTRIBUTING.md exist."""

import re

from absl.testing import absltest

from tests import experiment_files


class ContributingTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.text = experiment_files.read('CONTRIBUTING.md')

  def test_every_path_exists(self):
    paths = re.findall(r'`([\w.-]+/[\w./-]*)`', self.text)
    self.assertGreater(len(paths), 40)
    for path in paths:
      self.assertTrue((experiment_files.ROOT / path).exists(), path)
