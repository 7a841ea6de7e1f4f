#!/usr/bin/env bash
# Runs a recipe: bash scripts/recipes/run.sh TASK [flags of train_grpo.py, which override the recipe's]
#
#   DATASET=data/clevr.jsonl NPROC=8 bash scripts/recipes/run.sh clevr_count
#   TINY=1 bash scripts/recipes/run.sh countdown
#
# TASK is one of the .yaml files beside this script. From the environment:
#   MODEL    checkpoint                      (default: Qwen/Qwen3.5-4B; Qwen/Qwen3-VL-4B-Instruct and
#            Qwen/Qwen2.5-VL-3B-Instruct are others of its size)
#   DATASET  annotation file or catalog name (default: a small set made on the spot)
#   OUT      folder for records and run      (default: out/recipes/TASK)
#   TINY     1: two steps on a tiny model with random weights, to see that everything is in place
#   NPROC, DEEPSPEED, PYTHON, DRY_RUN        as in scripts/train_grpo.sh
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
task="${1:?usage: run.sh TASK [flags]; TASK is one of $(cd "$root/scripts/recipes" && echo *.yaml | sed 's/\.yaml//g')}"
shift
recipe="$root/scripts/recipes/$task.yaml"
[[ -f "$recipe" ]] || { echo "run.sh: no recipe $recipe" >&2; exit 2; }
out="${OUT:-out/recipes/$task}"
export PYTHON="${PYTHON:-python}" PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

prepare() { # not where the command is only to be shown
    if [[ "${DRY_RUN:-0}" != 1 ]]; then "$@"; fi
}

tiny=()
if [[ "${TINY-}" == 1 ]]; then
    MODEL="$out/tiny"
    prepare "$PYTHON" -c "import sys; from qwenvl.demo.tiny import save_tiny; save_tiny(sys.argv[1])" "$MODEL"
    tiny=(--max_steps 2 --generation_max_length 16 --grpo_sample_size 2 --gradient_accumulation_steps 1 --use_cpu
          --learning_rate 1e-4 --save_strategy no)
fi
if [[ -z "${DATASET-}" ]]; then
    count=(--train 400 --heldout 100)
    if [[ "${TINY-}" == 1 ]]; then count=(--train 8 --heldout 2); fi
    prepare "$PYTHON" "$root/scripts/recipes/make_records.py" "$task" "$out/records" "${count[@]}"
    DATASET="$out/records/train.jsonl"
    if [[ "$task" == procedure ]]; then DATASET="$out/records/train.json"; fi
fi

unset OUT TINY
model="${MODEL:-Qwen/Qwen3.5-4B}" data="$DATASET"
unset MODEL DATASET
bash "$root/scripts/train_grpo.sh" "$recipe" --model_name_or_path "$model" --dataset_use "$data" \
    --output_dir "$out/run" ${tiny[@]+"${tiny[@]}"} "$@"
