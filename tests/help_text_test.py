"""Tests of tff_asr.help_text."""

from absl import flags
from absl.testing import absltest

from tff_asr import help_text


class UsageTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    text, values = flags.ArgumentParser(), flags.FlagValues()
    self.defined = [
        flags.Flag(text, None, 'run', None, 'A folder.'),
        flags.Flag(flags.IntegerParser(), None, 'count', 10, 'How many.'),
        flags.EnumFlag('kind', 'one', 'Which one.', ['one', 'two']),
        flags.BooleanFlag('padding', False, 'Whether.'),
        flags.Flag(
            flags.FloatParser(), None, 'weight', None, 'w' * 5 + ' v' * 30
        ),
        flags.Flag(flags.ListParser(), None, 'data', None, 'Folders.'),
        flags.MultiFlag(text, None, 'gin', [], 'Text.'),
    ]
    values['run'] = self.defined[0]
    flags.mark_flag_as_required('run', flag_values=values)

  def test_by_hand(self):
    self.assertEqual(
        help_text.text('Does it.\n', defined=self.defined, groups={
            'How': ('weight', 'count'),
        }),
        'Does it.\n'
        '\n'
        'Needed:\n'
        '  --run=TEXT              A folder.\n'
        '\n'
        'How:\n'
        '  --weight=X              wwwww' + ' v' * 24 + '\n'
        '                          ' + ' '.join('v' * 6) + '\n'
        '  --count=N               How many. Default: 10.\n'
        '\n'
        'Optional:\n'
        '  --kind=one|two          Which one. Default: one.\n'
        '  --[no]padding           Whether.\n'
        '  --data=A,B              Folders.\n'
        '  --gin=TEXT              Text.\n',
    )

  def test_long_names_have_a_line(self):
    flag = flags.Flag(
        flags.IntegerParser(), None, 'a_name_of_many_letters', None, 'Help.'
    )
    text = help_text.text('X.', defined=[flag])
    self.assertIn(
        '  --a_name_of_many_letters=N\n                          Help.\n', text
    )

  def test_no_line_is_too_wide(self):
    text = help_text.text('X.', defined=self.defined)
    self.assertLessEqual(max(map(len, text.splitlines())), 80)

  def test_a_group_of_unknown_flags_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'no flags to group: typo'):
      help_text.text('X.', defined=self.defined, groups={'How': ('typo',)})


if __name__ == '__main__':
  absltest.main()
