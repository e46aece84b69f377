"""The first page of the site's API."""

import re

from absl.testing import absltest

from tools import layers
from tools import site_api

_LIBRARY = layers.ROOT / 'tff_asr'


class SiteApiTest(absltest.TestCase):

  def test_every_room_is_described(self):
    rows = dict(
        re.findall(
            r'^\| \[(\w+)\]\(\1\.md\) \| (.*?) \|$',
            site_api.page(_LIBRARY),
            re.MULTILINE,
        )
    )
    self.assertEqual(set(rows), {room for row in layers.LAYERS for room in row
                                 if (_LIBRARY / room).is_dir()})
    for room, description in rows.items():
      self.assertNotEmpty(description, room)

  def test_an_example_is_the_doctest_without_its_surroundings(self):
    self.assertEqual(
        site_api.example(_LIBRARY, 'metrics.word_errors'),
        ">>> errors = count('the cat sat', 'the cat sad down')\n"
        '>>> errors\n'
        'WordErrors(substitutions=1, deletions=0, insertions=1, words=3)\n'
        '>>> round(errors.rate, 3)\n'
        '0.667',
    )

  def test_the_page_shows_the_example_of_each_entry_point(self):
    page = site_api.page(_LIBRARY)
    for name in site_api.ENTRY_POINTS:
      self.assertIn(site_api.example(_LIBRARY, name), page)
    self.assertEqual(page.count('```pycon'), len(site_api.ENTRY_POINTS))

  def test_an_entry_point_without_an_example_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'greedy has no example'):
      site_api.example(_LIBRARY, 'decoding.greedy')


if __name__ == '__main__':
  absltest.main()
