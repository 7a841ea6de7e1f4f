#!/usr/bin/env bash
# Trains a Qwen-VL checkpoint by GRPO on your records, on one process, on the GPUs of this machine or of several.
#
#   DATASET=data/sop.json bash scripts/train_grpo.sh
#   MODEL=Qwen/Qwen3.5-9B DATASET=sop NPROC=8 DEEPSPEED=zero3 bash scripts/train_grpo.sh --grpo_beta 0.04
#   NPROC=4 bash scripts/train_grpo.sh run.yaml
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash scripts/train_grpo.sh run.yaml    # and NODE_RANK=1 on the other one
#
# Every line "option" below is a setting: its flag, its environment variable, and the default of this script. "" is the
# default of the flag itself (docs/flags.md). Set the variable, or append the flag, which overrides it. With a settings
# file (first argument, or --config) this script has no defaults: only what you set or append is given.
#
# About the launch itself:
#   NPROC      processes, one for each GPU               (default: the GPUs of this machine, or 1)
#   NNODES     machines, each of which runs this script  (default: 1)
#   NODE_RANK  the number of this machine, from 0; MASTER_ADDR, MASTER_PORT: where machine 0 is reached (port: 29500)
#   DEEPSPEED  zero2, zero3 or a DeepSpeed JSON file     (default: none; needs pip install 'qwenvl[deepspeed]')
#   FSDP       True, or a JSON file for --fsdp_config    (default: none)
#   PYTHON     the interpreter                           (default: that of the active environment, else of .venv)
#   DRY_RUN    1 prints the command and does not run it
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

config=""
case "${1-}" in
    -*) ;;
    *.yaml | *.yml | *.json) config="$1"; shift ;;
esac
from_file="$config"
for argument in "$@"; do
    case "$argument" in --config | --config=*) from_file="$argument" ;; esac
done

arguments=()
option() { # option FLAG VARIABLE DEFAULT; left out where it has neither a value nor a default
    local value="${!2-}"
    if [[ -z "$value" && -z "$from_file" ]]; then value="$3"; fi
    if [[ -n "$value" ]]; then arguments+=("$1" "$value"); fi
}

# --- model and data
option --model_name_or_path          MODEL          Qwen/Qwen3.5-4B  # or Qwen/Qwen3-VL-4B-Instruct, Qwen/Qwen2.5-VL-3B-Instruct
option --dataset_use                 DATASET        ""    # a name of data/datasets.yaml, or a .json or .jsonl file
option --eval_dataset_use            EVAL_DATASET   ""
option --output_dir                  OUTPUT         runs/grpo

# --- what learns, and how fast
option --tune_mm_llm                 TUNE_LLM       ""
option --tune_mm_mlp                 TUNE_MLP       ""
option --tune_mm_vision              TUNE_VISION    ""
option --lora_enable                 LORA           ""
option --learning_rate               LR             ""
option --warmup_steps                WARMUP         ""    # below 1: a share of all steps
option --num_train_epochs            EPOCHS         ""
option --max_steps                   MAX_STEPS      ""    # overrides EPOCHS

# --- a step is NPROC x BATCH_SIZE x ACCUMULATE prompts with GROUP_SIZE completions each
option --per_device_train_batch_size BATCH_SIZE     ""
option --gradient_accumulation_steps ACCUMULATE     ""
option --grpo_sample_size            GROUP_SIZE     ""
option --generation_max_length       MAX_NEW_TOKENS ""
option --generation_temperature      TEMPERATURE    ""
option --grpo_beta                   BETA           ""

# --- what the model sees: the knobs that decide memory and time
option --base_interval               INTERVAL       ""    # seconds between frames
option --video_max_frames            MAX_FRAMES     ""
option --video_max_frame_pixels      FRAME_PIXELS   ""    # 28 x 28 of them are a vision token of a pair of frames
option --max_prompt_length           MAX_PROMPT     ""

# --- machine: nothing here changes what is learned
option --gradient_checkpointing      CHECKPOINTING  True  # less memory, about a fifth more time
option --dataloader_num_workers      WORKERS        4     # processes that decode video, for each GPU
option --save_steps                  SAVE_STEPS     ""
case " $* " in
    *" --save_strategy=no "* | *" --save_strategy no "*) ;; # a limit would have no effect
    *) option --save_total_limit     SAVE_LIMIT     3 ;; # checkpoints kept
esac
option --report_to                   REPORT_TO      ""

strategy="" every=""
if [[ -n "${EVAL_DATASET-}" ]]; then
    strategy="${EVAL_STRATEGY:-steps}"
    if [[ "$strategy" == steps ]]; then every=100; fi
fi
option --eval_strategy               EVAL_STRATEGY  "$strategy"
option --eval_steps                  EVAL_STEPS     "$every"
case "${DEEPSPEED:-none}" in
    none) ;;
    zero2 | zero3) arguments+=(--deepspeed "$root/scripts/deepspeed/$DEEPSPEED.json") ;;
    *) arguments+=(--deepspeed "$DEEPSPEED") ;;
esac
case "${FSDP:-none}" in
    none) ;;
    True | true | 1) arguments+=(--fsdp) ;;
    *) arguments+=(--fsdp --fsdp_config "$FSDP") ;;
esac

gpus() {
    if [[ -n "${CUDA_VISIBLE_DEVICES+set}" ]]; then
        tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c . || true
    elif command -v nvidia-smi >/dev/null; then
        nvidia-smi -L | grep -c '^GPU ' || true  # parts of a GPU (MIG) have lines of their own
    else
        echo 0
    fi
}
nproc="${NPROC:-$(gpus)}"

interpreter="${PYTHON:-python}"
if [[ -z "${PYTHON-}${VIRTUAL_ENV-}${CONDA_PREFIX-}" && -x "$root/.venv/bin/python" ]]; then
    interpreter="$root/.venv/bin/python"
fi

command=("$interpreter")
nnodes="${NNODES:-1}"
if ((nproc > 1 || nnodes > 1)) || [[ "${DEEPSPEED:-none}" != none ]]; then # DeepSpeed asks for a launcher for one process
    ((nproc > 0)) || nproc=1
    if ((nnodes > 1)); then
        where=(--nnodes "$nnodes" --node_rank "${NODE_RANK:?is not set: the number of this machine, 0 to NNODES - 1}")
        where+=(--master_addr "${MASTER_ADDR:?is not set: the address of machine 0}" --master_port "${MASTER_PORT:-29500}")
    else
        where=(--standalone)
    fi
    command+=(-m qwenvl.train.run.launch "${where[@]}" --nproc_per_node "$nproc")
fi
command+=("$root/qwenvl/train/train_grpo.py")
if [[ -n "$config" ]]; then command+=(--config "$config"); fi
command+=("${arguments[@]}" "$@")

export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
if [[ "${DRY_RUN:-0}" == 1 ]]; then
    printf '%q ' "${command[@]}"
    echo
    exit
fi
exec "${command[@]}"
