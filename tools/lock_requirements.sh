#!/usr/bin/env bash
# Rewrites requirements.txt from requirements.in and requirements.overrides.
#
# Needs Python 3.11 and the package index; installs the resolver `uv` into a
# temporary virtual environment of its own and leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet uv
{
  echo "# Every package of the environment, pinned. Do not edit: made by"
  echo "# tools/lock_requirements.sh from requirements.in and"
  echo "# requirements.overrides. Install with: pip install --no-deps -r"
  "$work/venv/bin/uv" pip compile --quiet --python-version 3.11 --no-header \
    --no-emit-index-url --no-emit-find-links --no-annotate \
    --override requirements.overrides "$@" requirements.in
} > "$work/requirements.txt"
mv "$work/requirements.txt" requirements.txt
