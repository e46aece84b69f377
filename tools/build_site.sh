#!/usr/bin/env bash
# Builds the site of mkdocs.yml into site/; a broken link is an error.
#   tools/build_site.sh
#   REPOSITORY_URL=https://... tools/build_site.sh   # with a link to it
# Needs Python 3.11 and the package index; .venvs/docs gets what
# requirements-docs.txt pins.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=$(sha256sum requirements-docs.txt)
if [ "$(cat .venvs/docs/installed 2>/dev/null || true)" != "$wanted" ]; then
  python3.11 -m venv --clear .venvs/docs
  .venvs/docs/bin/python -m pip install --quiet --disable-pip-version-check \
    --require-hashes -r requirements-docs.txt
  echo "$wanted" > .venvs/docs/installed
fi
# Material's notice of its successor is for this project's developers.
NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/python -m mkdocs build --clean --strict "$@"
