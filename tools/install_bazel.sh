#!/usr/bin/env bash
# Installs the Bazel that Debian and Ubuntu package (bazel-bootstrap: 4.2.3 in
# Debian 12; 40 MB to fetch), the one that this project's builds were run with.
set -euo pipefail
if command -v bazel > /dev/null; then
  echo "bazel is there: $(command -v bazel)" >&2
  exit
fi
if ! command -v apt-get > /dev/null; then
  echo "error: apt-get is needed, found none; install Bazel 4 to 7 by hand." >&2
  exit 1
fi
if [ "$(id -u)" != 0 ]; then
  echo "error: packages are installed by root, found $(id -un);" \
    "run: sudo tools/install_bazel.sh" >&2
  exit 1
fi
apt-get update
apt-get install --yes --no-install-recommends bazel-bootstrap
