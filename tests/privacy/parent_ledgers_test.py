"""Tests of tff_asr.privacy.parent_ledgers."""

import os
import tempfile

from absl.testing import absltest

from tests import fakes
from tff_asr.privacy import hash_chain
from tff_asr.privacy import ledger
from tff_asr.privacy import parent_ledgers


def _count(contents: ledger.Contents) -> int:
  return sum(group.count for group in contents.rounds)


class LedgerApartTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())

  def run_of(self, name: str, parent, *, unit, num_rounds: int):
    """The place of the ledger of a run that started from another's model."""
    folder = os.path.join(self.root, name)
    os.makedirs(folder)
    path = os.path.join(folder, 'ledger.jsonl')
    parents = parent_ledgers.split(parent, unit=unit)
    own, head = parents.own or (None, None)
    with ledger.create(
        path,
        unit=unit,
        parent=own,
        parent_head=head,
        apart=parent_ledgers.carry(path, parents.apart),
    ) as opened:
      for number in range(num_rounds):
        opened.append(
            fakes.charged_round(100 * len(os.listdir(self.root)) + number)
        )
      return path, opened.head

  def counts(self, place) -> dict[str, int]:
    path, head = place
    own = ledger.read(path, head=head)
    return {
        contents.unit: _count(contents)
        for contents in [own, *parent_ledgers.read(path)]
    }

  def test_a_chain_of_runs_has_one_whole_ledger_a_unit(self):
    example = self.run_of('pretrained', None, unit='example', num_rounds=3)
    speaker = self.run_of('federated', example, unit='speaker', num_rounds=2)
    self.assertEqual(self.counts(speaker), {'speaker': 2, 'example': 3})
    # Nothing is inherited from the other unit.
    self.assertEqual(ledger.read(speaker[0]).inherited, 0)
    public = self.run_of('central', speaker, unit=None, num_rounds=0)
    self.assertEqual(self.counts(public), {'speaker': 2, 'example': 3})
    again = self.run_of('again', public, unit='example', num_rounds=4)
    self.assertEqual(self.counts(again), {'example': 7, 'speaker': 2})
    self.assertEqual(ledger.read(again[0]).inherited, 3)

  def test_one_unit_alone_leaves_nothing_apart(self):
    first = self.run_of('first', None, unit='speaker', num_rounds=2)
    second = self.run_of('second', first, unit='speaker', num_rounds=1)
    self.assertEqual(self.counts(second), {'speaker': 3})
    self.assertNotIn(b'apart', open(second[0], 'rb').read())
    self.assertEqual(
        parent_ledgers.split(None, unit='speaker'),
        parent_ledgers.Parents(None, {}),
    )

  def test_a_ledger_without_rounds_cost_nothing(self):
    empty = self.run_of('empty', None, unit='example', num_rounds=0)
    speaker = self.run_of('federated', empty, unit='speaker', num_rounds=1)
    self.assertEqual(self.counts(speaker), {'speaker': 1})

  def test_a_missing_or_changed_ledger_is_refused(self):
    example = self.run_of('pretrained', None, unit='example', num_rounds=2)
    path, head = self.run_of('federated', example, unit='speaker', num_rounds=1)
    copy = hash_chain.path_beside(path, 'example')
    with open(copy, 'rb') as file:
      lines = file.read().splitlines(keepends=True)
    with open(copy, 'wb') as file:
      file.write(b''.join(lines[:-1]))
    for error in ('was shortened', 'is missing'):
      for look in (
          lambda: parent_ledgers.read(path),
          lambda: parent_ledgers.split((path, head), unit='speaker'),
          lambda: ledger.resume(path, head=head),
      ):
        with self.assertRaisesRegex(ledger.LedgerError, error):
          look()
      if os.path.exists(copy):
        os.remove(copy)


if __name__ == '__main__':
  absltest.main()
