"""What a written split holds: numbers for summary.json and a text to print."""

from collections.abc import Mapping, Sequence
from typing import Any

from data_tools import audio
from tff_asr.data import index
from tff_asr.data import schema

DROPPED_FILE = 'dropped.tsv'


def build(
    clients: index.Clients,
    *,
    dropped: Sequence[tuple[str, str, str, str]],
    conversions: audio.Conversions,
) -> dict[str, Any]:
  """Returns the summary of a split, as summary.json holds it.

  Args:
    clients: The clients that were written.
    dropped: Client id, utterance id, reason and detail of what was left out.
    conversions: What happened to the audio.

  Returns:
    num_clients, num_utterances, hours, minutes_per_client (min, mean, std,
    max), dropped ({reason: count}), notices.
  """
  minutes = clients.num_samples / (60 * schema.SAMPLE_RATE_HZ)
  reasons: dict[str, int] = {}
  for _, _, reason, _ in dropped:
    reasons[reason] = reasons.get(reason, 0) + 1
  return {
      'num_clients': len(clients.client_ids),
      'num_utterances': int(clients.num_utterances.sum()),
      'hours': round(float(minutes.sum()) / 60, 6),
      'minutes_per_client': {
          'min': round(float(minutes.min()), 4),
          'mean': round(float(minutes.mean()), 4),
          'std': round(float(minutes.std()), 4),
          'max': round(float(minutes.max()), 4),
      },
      'dropped': dict(sorted(reasons.items())),
      'notices': list(conversions.notices()),
  }


def describe(folder: str, summary: Mapping[str, Any]) -> str:
  """Returns the lines that tell what a folder holds."""
  minutes = summary['minutes_per_client']
  lines = [
      f'{folder}: {summary["num_clients"]} speakers,'
      f' {summary["num_utterances"]} utterances, {summary["hours"]:.2f} h,'
      f' {minutes["mean"]:.1f} minutes a speaker ({minutes["min"]:.1f} to'
      f' {minutes["max"]:.1f})'
  ]
  lines.extend(f'  {notice}' for notice in summary['notices'])
  lines.extend(
      f'  {count} left out: {reason} (see {DROPPED_FILE})'
      for reason, count in summary['dropped'].items()
  )
  return '\n'.join(lines)
