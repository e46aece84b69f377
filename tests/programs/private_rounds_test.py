"""Tests of what private_rounds says of a plan; its rounds: federated_test."""

import os
import tempfile
import types

from absl.testing import absltest
import dp_accounting

from tff_asr.privacy import accounting
from tff_asr.privacy import keys
from tff_asr.privacy import ledger
from tff_asr.privacy import ledger_rounds
from tff_asr.programs import private_rounds

_NOISE = 4.0
# 100 rounds a pass.
_PASS = accounting.Sampling(kind='pass', cohort_size=1, population=100)
_POISSON = accounting.Sampling(kind='poisson', cohort_size=5, population=100)
_DELTA = 1e-5


def _state(sampling: accounting.Sampling) -> types.SimpleNamespace:
  """A process's state, as far as its plan goes."""
  if sampling.kind == 'pass':
    event = dp_accounting.SingleEpochTreeAggregationDpEvent(
        _NOISE, sampling.rounds_per_pass
    )
  else:
    event = accounting.round_event(
        accounting.Sampling(kind='full', cohort_size=1, population=1),
        noise_multiplier=_NOISE,
    )
  return types.SimpleNamespace(
      aggregator=types.SimpleNamespace(dp_event=event.to_named_tuple())
  )


def _append(opened: ledger.Ledger, sampling: accounting.Sampling, number: int):
  opened.append(
      ledger.Round(
          round_num=number,
          sampling=sampling,
          noise_multipliers=(_NOISE,),
          configuration='',
          identity=ledger.round_identity(
              noise_key=keys.draw(),
              noise_counter=number,
              sampler_key=keys.draw(),
              round_num=number,
              configuration='',
          ),
      )
  )


class PlanTest(absltest.TestCase):

  def test_the_plan_costs_what_the_ledger_will_charge(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    for kind in (_PASS, _POISSON):
      first = os.path.join(folder, f'{kind.kind}_first')
      second = os.path.join(folder, f'{kind.kind}_second')
      with ledger.create(first) as opened:
        _append(opened, kind, 0)
        head = opened.head
      planned = private_rounds.epsilon_of_plan(
          _state(kind),
          sampling=kind,
          num_rounds=100,
          inherited=ledger.read_charges(first, head=head),
          delta=_DELTA,
      )
      with ledger.create(second, parent=first, parent_head=head) as opened:
        for number in range(100):
          _append(opened, kind, number)
        charged = accounting.epsilon(
            accounting.compose(opened.contents.rounds), delta=_DELTA
        )
      self.assertAlmostEqual(planned, charged, places=9)

  def test_a_target_below_the_first_round_is_refused(self):
    inherited = ledger_rounds.Charges()
    for number in range(3):
      inherited.add_round(
          sampling=_POISSON, noise_multipliers=(_NOISE,), round_num=number
      )
    settings = dict(
        sampling=_POISSON, delta=_DELTA, inherited=inherited
    )
    private_rounds.check_first_round(
        _state(_POISSON), target_epsilon=10.0, **settings
    )
    with self.assertRaisesRegex(ValueError, 'with 3 rounds of INIT_FROM_RUN'):
      private_rounds.check_first_round(
          _state(_POISSON), target_epsilon=1e-3, **settings
      )
    # What was inherited stays as it was.
    self.assertEqual([group.count for group in inherited.rounds], [3])


if __name__ == '__main__':
  absltest.main()
