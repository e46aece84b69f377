#!/usr/bin/env bash
# Makes .venv with everything that requirements.txt pins, or brings it up to
# date; does nothing when it is. Needs Python 3.11, pip and the package index.
#   tools/make_venv.sh
#   tools/make_venv.sh speech-synthesis    # and what requirements-... pins
set -euo pipefail
cd "$(dirname "$0")/.."

install() {  # install FILE ...
  # --no-deps: the lock is complete, and TFF's own pins cannot be resolved.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --no-deps "$@"
}

wanted=$(sha256sum requirements.txt)
if [ "$(cat .venv/installed 2>/dev/null || true)" != "$wanted" ]; then
  python=$(command -v python3.11 || command -v python3 || true)
  version=$("${python:-false}" -c \
    'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)
  if [ "$version" != 3.11 ]; then
    echo "error: Python 3.11 is needed, found ${version:-none};" \
      "docs/installing.md says how to get it." >&2
    exit 1
  fi
  echo "Installing into .venv (0.8 GB to fetch, some minutes) ..." >&2
  "$python" -m venv --clear .venv
  install -r requirements.txt
  echo "$wanted" > .venv/installed
fi
for extra in "$@"; do
  wanted=$(sha256sum "requirements-$extra.txt")
  if [ "$(cat ".venv/installed-$extra" 2>/dev/null || true)" != "$wanted" ]; then
    install -r "requirements-$extra.txt"
    echo "$wanted" > ".venv/installed-$extra"
  fi
done
# Programs in bin/ find the project's packages from any working directory.
pwd > "$(.venv/bin/python -c \
  'import sysconfig; print(sysconfig.get_path("purelib"))')/tff_asr.pth"
# The wheel's console script.
printf '#!/bin/sh\nexec "%s/.venv/bin/python" -m tff_asr "$@"\n' "$PWD" \
  > .venv/bin/tff-asr
chmod +x .venv/bin/tff-asr
