#!/bin/bash
# Makes the virtual environments of the baselines, which conflict with
# TensorFlow 2.14:
#
#     benchmarks/baselines/make_venvs.sh            # torch jax pfl pfl_tf flwr
#     benchmarks/baselines/make_venvs.sh pfl flwr   # these
#
# Each comes from the pinned requirements-NAME.txt in this folder into
# .venvs/NAME of the project's folder. PYTHON is the interpreter to make them
# with, python3.11 by default. PyTorch of a plain package index brings CUDA, some
# GB: where there is no GPU, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU
# wheels.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
python="${PYTHON:-python3.11}"
venvs=../../.venvs
names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
  names=(torch jax pfl pfl_tf flwr)
fi
for name in "${names[@]}"; do
  if [[ ! -f "requirements-${name}.txt" ]]; then
    echo "error: make_venvs.sh takes $(ls requirements-*.txt |
        sed 's/requirements-\(.*\).txt/\1/' | xargs), found ${name}." >&2
    exit 1
  fi
done
for name in "${names[@]}"; do
  "${python}" -m venv --clear "${venvs}/${name}"
  "${venvs}/${name}/bin/python" -m pip install --quiet \
      --disable-pip-version-check --requirement "requirements-${name}.txt"
done
