"""Plans of private training as text: see `privacy.planning`.

The seed model and public people are read here, and measured in
`programs.update_signal`.
"""

from collections.abc import Sequence
import json
from typing import Any, Optional

from tff_asr.data import client_data
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import planning
from tff_asr.programs import update_signal
from tff_asr.recognition import model_spec
from tff_asr.reports import tables


def plan(
    *,
    num_people: Sequence[int],
    cohort_sizes: Sequence[int],
    rounds: Sequence[int],
    share: Optional[float],
    signal: Optional[float],
    num_parameters: Optional[int],
    num_utterances: Optional[int],
    run: Optional[str],
    public_dir: Optional[str],
    update: Optional[update_signal.ClientUpdate],
    output_format: str,
    **goal: Any,
) -> str:
  """Returns plans as Markdown and sentences, or as JSON.

  Args:
    num_people: A plan is made for each.
    cohort_sizes: See `planning.Goal.plan`.
    rounds: See there.
    share: See there.
    signal: As `planning.Goal` has it; None: measured.
    num_parameters: The same.
    num_utterances: Of each person, if the signal is measured.
    run: Folder of the seed run, to measure it.
    public_dir: Folder of shards of public people.
    update: What a client does; None: `update_signal.one_step`.
    output_format: 'text' or 'json'.
    **goal: The other arguments of `planning.Goal`.

  Raises:
    ValueError: Neither a run nor a signal is given, or as the parts raise.
  """
  measured = None
  if run:
    if not public_dir or num_utterances is None:
      raise ValueError('--run needs --public_dir and --num_utterances.')
    update = update or update_signal.one_step(*model_spec.read(run))
    people = client_data.load(public_dir)
    measured = update_signal.measure(
        update, weights=update.read_weights(run, people), client_data=people
    )
    num_parameters = weights_lib.num_parameters(update.trained)
    signal = measured.law.signal(num_utterances)
    goal['signal_error'] = measured.law.relative_error
    goal['clients_per_sec'] = goal['clients_per_sec'] or (
        measured.clients_per_sec(num_utterances)
    )
  elif signal is None or num_parameters is None:
    raise ValueError(
        'give --run, --public_dir and --num_utterances to measure the signal, '
        'or --signal and --num_parameters.'
    )
  plans = [
      planning.Goal(
          num_people=number,
          signal=signal,
          num_parameters=num_parameters,
          **goal,
      ).plan(cohort_sizes=cohort_sizes, rounds=rounds, share=share)
      for number in num_people
  ]
  if output_format == 'json':
    fields = [each.fields for each in plans]
    return json.dumps(fields if len(fields) > 1 else fields[0], indent=1)
  title, *_ = plans[0].table()
  rows = [row for each in plans for row in each.table()[1:]]
  shown = [measured.table()] if measured else []
  return '\n\n'.join([
      *map(tables.markdown, [*shown, [title, *rows]]),
      '\n'.join(each.words for each in plans),
  ])
