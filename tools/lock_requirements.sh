#!/usr/bin/env bash
# Rewrites requirements.txt from requirements.in and requirements.overrides, with
# the hashes of all files of each package on the index, and shows that the files
# of the extras go with it.
#   tools/lock_requirements.sh            (further arguments go to uv:
#       `-c requirements.txt` keeps what is pinned there)
#   tools/lock_requirements.sh --check    (only shows it, of what is there)
#   tools/lock_requirements.sh --docs     (rewrites requirements-docs.txt alone)
#   tools/lock_requirements.sh --hashes [EXTRA ...]
#       (renews the hashes of what requirements-EXTRA.txt pins, of all extras by
#       default; a new file needs its comments and pins, such as numpy==1.26.4)
#
# Needs Python 3.11 and the package index; installs the resolver `uv` into a
# temporary virtual environment and leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet uv

compile() {  # compile [OPTION ...] FILE ...
  "$work/venv/bin/uv" pip compile --quiet --python-version 3.11 --no-header \
    --no-emit-index-url --no-emit-find-links --no-annotate \
    --override requirements.overrides "$@"
}

pins() {  # pins FILE ...: only the pins, with names as the index has them
  sed -e '/^#/d' -e '/^$/d' -e '/^ *--hash/d' -e 's/ \\$//' "$@" | tr '[:upper:]_' '[:lower:]-' | sort
}

check() {  # check PLATFORM FILE ...: the files are each other's whole closure
  local platform=$1
  shift
  compile --python-platform "$platform" "$@" > "$work/resolved.txt"
  if ! diff <(pins "$@") <(pins "$work/resolved.txt") >&2; then
    echo "error: $* need what > marks beyond what they pin." >&2
    exit 1
  fi
  echo "$* resolve together." >&2
}

hash_extra() {  # hash_extra FILE: its comments, and its pins with hashes
  {
    grep '^#' "$1"
    pins "$1" | compile --no-deps --generate-hashes -
  } > "$work/hashed.txt"
  mv "$work/hashed.txt" "$1"
}

if [ "${1:-}" = --hashes ]; then
  shift
  # Not the files of environments of their own.
  [ $# -gt 0 ] || set -- $(ls requirements-*.txt |
    sed -e 's/requirements-\(.*\).txt/\1/' -e '/^docs$/d' -e '/parity$/d')
  for extra; do
    hash_extra "requirements-$extra.txt"
  done
  exit
fi
if [ "${1:-}" != --check ] && [ "${1:-}" != --docs ]; then
  {
    echo "# Every package of the environment, pinned. Do not edit: made by"
    echo "# tools/lock_requirements.sh from requirements.in and"
    echo "# requirements.overrides. Install with: pip install --no-deps -r FILE,"
    echo "# which refuses packages with another hash."
    compile --generate-hashes "$@" requirements.in
  } > "$work/requirements.txt"
  mv "$work/requirements.txt" requirements.txt
fi
if [ "${1:-}" = --docs ]; then
  # A separate environment, without the packages of requirements.txt.
  {
    grep '^#' requirements-docs.txt
    printf '%s\n' mkdocs mkdocs-jupyter mkdocs-material 'mkdocstrings[python]' |
      "$work/venv/bin/uv" pip compile --quiet --python-version 3.11 --no-header \
        --no-emit-index-url --no-emit-find-links --no-annotate \
        --generate-hashes -
  } > "$work/requirements-docs.txt"
  mv "$work/requirements-docs.txt" requirements-docs.txt
  exit
fi
# The oldest platform that TFF 0.87 has a package for.
linux=x86_64-manylinux_2_31
check "$linux" requirements.txt
# Without lm and whisper-normalizer, where what pyctcdecode asks for its own tests
# and whisper-normalizer for other languages is left out.
for extra in gpu hub notebooks ray sentencepiece speech-synthesis whisper-base \
    whisper-decoder whisper-tiny; do
  check "$linux" requirements.txt "requirements-$extra.txt"
done
check "$linux" requirements.txt requirements-ray.txt requirements-gpu.txt
