from absl.testing import absltest

from data_tools import attributes

_ROWS = [
    ('ann', {'gender': 'female', 'age': 'teens'}),
    ('ann', {'gender': '', 'age': 'twenties'}),
    ('bob', {'gender': ' male\t', 'age': '', 'shoes': '44'}),
    ('bob', {'gender': 'male'}),
    ('cai', {}),
]


def _gather():
  return attributes.gather(['gender', 'age', 'accent'], _ROWS)


class AttributesTest(absltest.TestCase):

  def test_gathers_all_that_is_said(self):
    self.assertEqual(
        _gather(),
        {
            'gender': {'ann': {'female'}, 'bob': {'male'}},
            'age': {'ann': {'teens', 'twenties'}},
            'accent': {},
        },
    )

  def test_what_would_break_a_table_becomes_a_space(self):
    found = attributes.gather(['a'], [('ann', {'a': ' x \t\n\0 y\u2028z '})])
    self.assertEqual(found, {'a': {'ann': {'x y z'}}})

  def test_contradictions_are_left_empty_and_counted(self):
    settled = attributes.settle(_gather(), client_ids=['ann', 'bob', 'cai'])
    self.assertEqual(
        settled.values,
        {
            'ann': {'gender': 'female', 'age': '', 'accent': ''},
            'bob': {'gender': 'male', 'age': '', 'accent': ''},
            'cai': {'gender': '', 'age': '', 'accent': ''},
        },
    )
    self.assertEqual(
        settled.counts,
        {
            'gender': {'known': 2, 'contradictory': 0},
            'age': {'known': 0, 'contradictory': 1},
            'accent': {'known': 0, 'contradictory': 0},
        },
    )

  def test_others_are_not_counted(self):
    settled = attributes.settle(_gather(), client_ids=['bob'])
    self.assertEqual(list(settled.values), ['bob'])
    self.assertEqual(
        settled.counts['gender'], {'known': 1, 'contradictory': 0}
    )
    self.assertEqual(settled.counts['age'], {'known': 0, 'contradictory': 0})

  def test_parts_of_a_corpus_may_contradict_each_other(self):
    other = attributes.gather(['gender'], [('bob', {'gender': 'other'})])
    joined = attributes.join([_gather(), other])
    self.assertEqual(list(joined), ['gender', 'age', 'accent'])
    self.assertEqual(joined['gender']['bob'], {'male', 'other'})
    self.assertEqual(joined['gender']['ann'], {'female'})
    self.assertEqual(attributes.join([]), {})

  def test_keeps_what_is_named_in_that_order(self):
    kept = attributes.keep(_gather(), names=['age', 'gender'])
    self.assertEqual(list(kept), ['age', 'gender'])
    self.assertEqual(attributes.keep(_gather(), names=[]), {})
    self.assertEqual(attributes.keep(_gather(), names=None), _gather())

  def test_attributes_that_are_not_there(self):
    with self.assertRaisesRegex(
        ValueError, "names 'sex', but the corpus says gender, age, accent of"
    ):
      attributes.keep(_gather(), names=['age', 'sex'])
    with self.assertRaisesRegex(ValueError, 'the corpus says nothing of'):
      attributes.keep(attributes.NONE, names=['sex'])
    with self.assertRaisesRegex(ValueError, "names 'age' twice"):
      attributes.keep(_gather(), names=['age', 'age'])


if __name__ == '__main__':
  absltest.main()
