#!/usr/bin/env bash
# The README's table on AN4: a seed model, then federated training without DP
# and with global and per-layer clipping at two noise levels, three seeds each.
#   tools/run_an4.sh AN4_FOLDER
# Runs that are there are kept, so it can be stopped and started again.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# != 1 ]; then
  echo "error: give AN4's folder (with etc/ and wav/), found $# arguments." >&2
  exit 1
fi
python=.venv/bin/python
runs=runs/an4
seeds="1 2 3"

$python -m data_tools.an4 --source_dir="$1" --output_dir=data/an4 \
  --splits=train --partition=public=28,private=rest,dev=4,test=10

train() {  # train PROGRAM EXPERIMENT RUN [SETTING ...]
  local program=$1 experiment=$2 run=$3
  shift 3
  [ -e "$runs/$run/results.json" ] && return
  echo "== $run"
  local settings=()
  for setting in "$@"; do settings+=("--gin_param=$setting"); done
  $python "bin/$program.py" --output_dir="$runs/$run" \
    --gin_file="gin/experiments/$experiment.gin" "${settings[@]}"
}

train train_central an4_seed seed
for seed in $seeds; do
  train train_federated an4_federated "federated_$seed" "SEED = $seed"
  for clip in global per_layer_uniform per_layer_dim; do
    for noise in 05:0.0006 16:0.0019; do
      train train_federated "an4_dp_$clip" "${clip}_${noise%%:*}_$seed" \
        "SEED = $seed" "NOISE_MULTIPLIER = ${noise##*:}"
    done
  done
done

names=(seed)
groups=("--group=seed=$runs/seed")
add() {  # add LABEL PREFIX
  local list=""
  for seed in $seeds; do
    names+=("$2_$seed")
    list+="${list:+,}$runs/$2_$seed"
  done
  groups+=("--group=$1=$list")
}
add 'federated, no DP' federated
for noise in 05 16; do
  for clip in 'global' 'per layer (uniform)' 'per layer (dim)'; do
    add "$clip, .$noise" "$(echo "$clip" | tr -d '()' | tr ' ' _)_$noise"
  done
done
list=$(printf "'$runs/%s', " "${names[@]}")
$python bin/evaluate.py --gin_file=gin/experiments/an4_evaluate.gin \
  --gin_param="RUNS = [$list]"
echo
$python bin/compare_runs.py "${groups[@]}"
# The same runs beside global clipping at the same noise.
for first in 2 5; do
  echo
  $python bin/compare_runs.py "${groups[@]:$first:3}"
done
