#!/usr/bin/env bash
# Private self-supervised pre-training in miniature (docs/pretraining.md): a public
# warm start, private phases from it with clips, noises and frozen layers, and
# CTC fine-tuning on AN4 and a part of LibriSpeech.
#   tools/run_pretraining.sh SPEECH [GROUP ...]
# SPEECH holds untranscribed/, an4/ and LibriSpeech/dev-clean/. Groups: noise,
# frozen, share, an4, librispeech (all by default); runs that are there are kept,
# so it can be stopped and started again. Afterwards it prints the tables.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
  echo "error: give the folder with untranscribed/, an4/ and LibriSpeech/." >&2
  exit 1
fi
speech=$1
shift
groups=${*:-noise frozen share an4 librispeech}
python=${PYTHON:-.venv/bin/python}
runs=runs/pretrain

shards() {  # shards TOOL SOURCE SPLIT OUTPUT PARTITION [FLAG ...]
  local tool=$1 source=$2 split=$3 output=$4 partition=$5
  shift 5
  [ -e "$output" ] && return
  $python -m "data_tools.$tool" --source_dir="$source" --splits="$split" \
    --output_dir="$output" --partition="$partition" "$@"
}
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
private() {  # private RUN CLIP NOISE FREEZE [SETTING ...]
  local run=$1 clip=$2 noise=$3 freeze=$4
  shift 4
  train pretrain pretrain_mini_private "$run" "CLIP_SPLIT = '$clip'" \
    "NOISE_MULTIPLIER = $noise" "FREEZE = $freeze" "$@"
}
pretrained=()
row() {  # row LABEL RUN: of the table of pre-training runs
  pretrained+=("$1=$runs/$2")
}

shards libri_light "$speech" untranscribed data/pretrain \
  public=40,private=rest,dev=16 --max_sec=5
train pretrain pretrain_mini_public public
row 'warm start (40 speakers, public)' public

# Noise is (noise norm)/C = sqrt(D) z / S: 0, .16, .5, 1.6, 5, 16.
noises="0.0 0.0015 0.0047 0.015 0.047 0.15"
freeze=@layer_freeze.LayerFreeze\(\)
for group in $groups; do
  case $group in
    noise)
      for noise in $noises; do
        for clip in global dim; do
          private "${clip}_$noise" "$clip" "$noise" None
          row "private, $clip, z = $noise" "${clip}_$noise"
        done
      done
      train pretrain pretrain_mini_public unprotected \
        "TRAIN_DIR = 'data/pretrain/untranscribed.private'" \
        "INIT_FROM_RUN = 'runs/pretrain/public'" "NUM_STEPS = 300"
      row 'the private speakers without DP' unprotected
      private scratch dim 0.0047 None "INIT_FROM_RUN = None"
      row 'private, dim, z = 0.0047, no warm start' scratch
      for clip in global dim; do
        private "scratch_${clip}_0.15" "$clip" 0.15 None "INIT_FROM_RUN = None"
        row "private, $clip, z = 0.15, no warm start" "scratch_${clip}_0.15"
      done
      ;;
    frozen)
      for share in 0.25 0.5 0.75; do
        private "frozen_$share" dim 0.0047 "$freeze" "FREEZE_SHARE = $share"
        row "private, dim, z = 0.0047, lowest $share frozen" "frozen_$share"
      done
      for order in random highest; do
        private "frozen_$order" dim 0.0047 "$freeze" "FREEZE_ORDER = '$order'"
        row "private, dim, z = 0.0047, $order 0.5 frozen" "frozen_$order"
      done
      ;;
    share)
      # Some 1 and 5 % of 110 speakers, all others of whom are private.
      shards libri_light "$speech" untranscribed data/pretrain_shares \
        public1=1,public5=5,private=rest,dev=16 --max_sec=5
      parts=data/pretrain_shares/untranscribed
      for number in 1 5; do
        train pretrain pretrain_mini_public "public$number" \
          "TRAIN_DIR = '$parts.public$number'" "DEV_DIR = '$parts.dev'" \
          "BATCH_SIZE = $number"
        row "warm start of $number speakers" "public$number"
        private "from_public$number" dim 0.0047 "$freeze" \
          "TRAIN_DIR = '$parts.private'" "DEV_DIR = '$parts.dev'" \
          "INIT_FROM_RUN = '$runs/public$number'"
        row "private from $number speakers' warm start" "from_public$number"
      done
      ;;
    an4)
      shards an4 "$speech/an4" train data/an4 \
        public=28,private=rest,dev=4,test=10
      ;;
    librispeech)
      shards librispeech "$speech/LibriSpeech" dev-clean data/ls_mini \
        public=14,dev=2,test=rest
      ;;
    *)
      echo "error: no group $group; there are noise, frozen, share, an4," \
        "librispeech." >&2
      exit 1
      ;;
  esac
done
echo
$python bin/report.py "${pretrained[@]}"

compare() {  # compare CORPUS RUN ...: WER of the runs fine-tuned on it
  local corpus=$1 list="" rows=()
  shift
  for run in "$@"; do
    list+="'$runs/${corpus}_$run', "
    rows+=("from $run=$runs/${corpus}_$run")
  done
  $python bin/evaluate.py --gin_param="RUNS = [$list]" \
    --gin_file="gin/experiments/finetune_mini_${corpus}_evaluate.gin"
  echo
  $python bin/report.py "${rows[@]}"
}
tune() {  # tune CORPUS RUN ...: from these runs, or from nothing; the table
  local corpus=$1 run
  shift
  for run in "$@"; do
    local from=("INIT_FROM_RUN = '$runs/$run'")
    case $run in
      # With the pre-trained ones' rates and frozen steps.
      nothing) from=("INIT_FROM_RUN = None") ;;
      nothing_unfrozen)
        from=("INIT_FROM_RUN = None" "ENCODER_FROZEN_STEPS = 0")
        ;;
      nothing_head_rate)
        from=("INIT_FROM_RUN = None" "ENCODER_FROZEN_STEPS = 0" "ENCODER_RATE = 1.0")
        ;;
    esac
    train train_central "finetune_mini_$corpus" "${corpus}_$run" "${from[@]}"
  done
  compare "$corpus" "$@"
}
if [[ " $groups " == *" an4 "* ]]; then
  seeds=(nothing nothing_unfrozen nothing_head_rate public)
  for run in scratch dim_0.0047 frozen_0.5 global_0.15 dim_0.15 unprotected; do
    [ -e "$runs/$run/results.json" ] && seeds+=("$run")
  done
  tune an4 "${seeds[@]}"
fi
if [[ " $groups " == *" librispeech "* ]]; then
  tune ls nothing public
fi
