"""The settings of transformers' ``TrainingArguments`` as a dataclass that can be read without torch.

Importing the class takes seconds. Here are its names, types and defaults, so that ``--help``, a misspelt flag and a
wrong value are answered at once; what each does is said in our own words. A test holds the fields to the class.

Settings with another default here are in ``own_options``. Settings without a text must keep their default:
``NOT_OF_OURS`` of ``trainer_checks`` has the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Schedule = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "reduce_lr_on_plateau",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
    "greedy",
]
Optimizer = Literal[
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
    "adafactor",
    "adamw_anyprecision",
    "adamw_torch_4bit",
    "adamw_torch_8bit",
    "ademamix",
    "sgd",
    "adagrad",
    "adamw_bnb_8bit",
    "adamw_8bit",
    "ademamix_8bit",
    "lion_8bit",
    "lion_32bit",
    "paged_adamw_32bit",
    "paged_adamw_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
    "paged_lion_32bit",
    "paged_lion_8bit",
    "rmsprop",
    "rmsprop_bnb",
    "rmsprop_bnb_8bit",
    "rmsprop_bnb_32bit",
    "galore_adamw",
    "galore_adamw_8bit",
    "galore_adafactor",
    "galore_adamw_layerwise",
    "galore_adamw_8bit_layerwise",
    "galore_adafactor_layerwise",
    "lomo",
    "adalomo",
    "grokadamw",
    "schedule_free_radam",
    "schedule_free_adamw",
    "schedule_free_sgd",
    "apollo_adamw",
    "apollo_adamw_layerwise",
    "stable_adamw",
]
LogLevel = Literal["detail", "debug", "info", "warning", "error", "critical", "passive"]


def setting(default: Any, help: str | None = None, **of_argparse: Any) -> Any:
    """A field of ``TrainerSettings``.

    Args:
        help: its text in ``--help``. None: it is not offered.
        of_argparse: arguments of ``add_argument``, where the type alone does not say how the flag is read.
    """
    metadata = dict(of_argparse)
    if help is not None:
        metadata["help"] = help
    return field(default=default, metadata=metadata)


@dataclass
class TrainerSettings:
    """Settings of the Hugging Face Trainer."""

    # ---- the run and its steps
    output_dir: str | None = setting(None, "Folder of the run: its model, checkpoints, log and completions.")
    max_steps: int = setting(-1, "Optimizer steps of the run. -1: as --num_train_epochs says.")
    gradient_accumulation_steps: int = setting(1, "Micro-batches of an optimizer step.")
    full_determinism: bool = setting(False, "Take deterministic kernels, which are slower; for finding errors.")
    resume_from_checkpoint: str | None = setting(None, "Folder of a checkpoint to resume, of a script; see --resume.")
    ignore_data_skip: bool = setting(False, "A resumed run begins with the first records of its epoch again.")
    restore_callback_states_from_checkpoint: bool = setting(False, "A resumed run has the callbacks' states of before.")

    # ---- optimizer
    lr_scheduler_type: Schedule = setting("linear", "How the learning rate moves over the run, after its warm-up.")
    lr_scheduler_kwargs: dict | str | None = setting(None, "Further arguments of the schedule, a JSON mapping.")
    warmup_steps: float = setting(0, "Steps over which the learning rate rises from 0; below 1 a share of all steps.")
    optim: Optimizer | None = setting(None, "Optimizer. Unset: AdamW of PyTorch, fused where there is such a kernel.")
    optim_args: str | None = setting(None, "Arguments of the optimizer, name=value,name=value.")
    optim_target_modules: str | list[str] | None = setting(
        None, "Modules that a projecting optimizer (GaLore, APOLLO) takes, by parts of their names."
    )
    weight_decay: float = setting(0.0, "Decay of the weights, at least 0; biases and norms have none.")
    adam_beta1: float = setting(0.9, "Beta 1 of Adam, 0 to below 1.")
    adam_beta2: float = setting(0.999, "Beta 2 of Adam, 0 to below 1.")
    adam_epsilon: float = setting(1e-8, "Epsilon of Adam, at least 0.")
    max_grad_norm: float = setting(1.0, "Gradients are scaled down to this norm, at least 0. 0: never.")
    neftune_noise_alpha: float | None = setting(None, "Noise on the embeddings while training (NEFTune), above 0.")

    # ---- numbers and memory
    gradient_checkpointing: bool | None = setting(
        None,
        "Compute the layers again in the backward pass: less memory, about a fifth more time.",
        nargs="?",
        const=True,
    )
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = setting(
        None, "Arguments of checkpointing, a JSON mapping."
    )
    activation_checkpointing: bool | None = setting(
        None, "The newer name of --gradient_checkpointing in transformers.", nargs="?", const=True
    )
    activation_checkpointing_kwargs: dict[str, Any] | str | None = setting(
        None, "The newer name of --gradient_checkpointing_kwargs."
    )
    torch_compile: bool = setting(False, "Compile the model for training (torch.compile).")
    torch_compile_backend: str | None = setting(None, "Backend of torch.compile, which it turns on.")
    torch_compile_mode: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None
    ) = setting(None, "Mode of torch.compile, which it turns on.")
    use_liger_kernel: bool = setting(False, "Take the kernels of Liger where it has them.")
    liger_kernel_config: dict[str, bool] | str | None = setting(None, "Which of these kernels, a JSON mapping.")
    use_cache: bool = setting(False, "Keep keys and values in training forwards, for models that need it.")
    torch_empty_cache_steps: int | None = setting(None, "Give unused GPU memory back every so many steps.")

    # ---- log and trackers
    logging_strategy: Literal["no", "steps", "epoch"] = setting("steps", "When to log.")
    logging_first_step: bool = setting(False, "Log the first step in any case.")
    log_on_each_node: bool = setting(True, "Print on each machine, or on the first alone.")
    log_level: LogLevel = setting("passive", "Least level of messages of libraries in the first process.")
    log_level_replica: LogLevel = setting("warning", "The same in the other processes.")
    include_num_input_tokens_seen: str | bool = setting("no", "Count the tokens of inputs: no, all or non_padding.")
    disable_tqdm: bool | None = setting(None, "Show the Trainer's own lines in place of a board.")
    report_to: str | list[str] | None = setting("none", "Trackers, such as tensorboard, wandb, mlflow, trackio.")
    run_name: str | None = setting(None, "Name of the run for trackers. Unset: that of its folder.")
    project: str = setting("huggingface", "Project of the run, for trackers that have projects.")
    trackio_space_id: str | None = setting(None, "Space on the hub that Trackio writes to.")
    trackio_bucket_id: str | None = setting(None, "Bucket on the hub that Trackio writes to.")
    trackio_static_space_id: str | Literal[False] | None = setting(None, "Static space that Trackio makes at the end.")
    skip_memory_metrics: bool = setting(True, "Leave out the Trainer's own report of memory, which takes time.")

    # ---- evaluation
    eval_strategy: Literal["no", "steps", "epoch"] = setting("no", "When to evaluate.")
    eval_steps: float | None = setting(None, "Optimizer steps between evaluations, above 0. Unset: --logging_steps.")
    eval_delay: float = setting(0, "Steps or epochs before the first evaluation, at least 0.")
    eval_on_start: bool = setting(False, "Evaluate before the first step.")

    # ---- checkpoints
    save_strategy: Literal["no", "steps", "epoch", "best"] = setting("steps", "When to save checkpoints.")
    save_total_limit: int | None = setting(None, "Most checkpoints that are kept, at least 1. Unset: all.")
    save_only_model: bool = setting(False, "Save the weights alone, from which a run can start and not be resumed.")
    save_on_each_node: bool = setting(False, "Save on each machine, where they share no disk.")
    load_best_model_at_end: bool = setting(False, "The model at the end is the best checkpoint, not the last.")
    metric_for_best_model: str | None = setting(None, "What the best one is best in. Unset: the total reward.")
    greater_is_better: bool | None = setting(None, "Whether more of that metric is better. Unset: by its name.")

    # ---- hub
    push_to_hub: bool = setting(False, "Push the model to the hub.")
    hub_model_id: str | None = setting(None, "Repository on the hub, NAME or OWNER/NAME. Unset: that of the folder.")
    hub_strategy: Literal["end", "every_save", "checkpoint", "all_checkpoints"] = setting(
        "every_save", "What is pushed, and when."
    )
    hub_token: str | None = setting(None, "Token of the hub. Unset: the one that `hf auth login` saved.")
    hub_private_repo: bool | None = setting(None, "Make a private repository.")
    hub_always_push: bool = setting(False, "Push each time, while an earlier push is under way too.")
    hub_revision: str | None = setting(None, "Branch to push to.")

    # ---- loading of data
    dataloader_drop_last: bool = setting(False, "Leave out the last micro-batch of an epoch if it is short.")
    dataloader_pin_memory: bool = setting(True, "Pinned memory, from which copies to a GPU are faster.")
    dataloader_persistent_workers: bool = setting(False, "Keep the loading processes from epoch to epoch.")
    dataloader_multiprocessing_context: str | None = setting(
        None, "How these processes are started.", choices=["fork", "spawn", "forkserver"]
    )
    dataloader_in_order: bool = setting(True, "Micro-batches come in their order. False: as they are ready.")

    # ---- several GPUs
    deepspeed: dict | str | None = setting(None, "Settings of DeepSpeed, a JSON file: scripts/deepspeed/ has some.")
    fsdp: str | None = setting(None, "Split the model by PyTorch's FSDP.", nargs="?", const=True)
    fsdp_config: dict[str, Any] | str | None = setting(None, "Settings of FSDP, a JSON file or mapping.")
    ddp_backend: str | None = setting(
        None,
        "Backend of the processes. Unset: NCCL on GPUs, Gloo on CPUs.",
        choices=["nccl", "gloo", "mpi", "xccl", "hccl", "cncl", "mccl"],
    )
    ddp_timeout: int = setting(1800, "Seconds after which a process that waits for the others ends, above 0.")
    ddp_bucket_cap_mb: int | None = setting(None, "Size of the buckets that gradients are averaged in, MB, above 0.")
    ddp_static_graph: bool | None = setting(None, "Promise to DDP that each step has the same graph.")
    accelerator_config: dict | str | None = setting(None, "Settings of Accelerate, a JSON file or mapping.")
    local_rank: int = setting(-1, "Number of the process on its machine, which launchers set.")

    # ---- not offered
    debug: str | list[str] = setting("")
    parallelism_config: str | None = setting(None)
    auto_find_batch_size: bool = setting(False)
    label_smoothing_factor: float = setting(0.0)
    average_tokens_across_devices: bool = setting(True)
    bf16_full_eval: bool = setting(False)
    fp16_full_eval: bool = setting(False)
    prediction_loss_only: bool = setting(False)
    eval_do_concat_batches: bool = setting(True)
    eval_use_gather_object: bool = setting(False)
    eval_accumulation_steps: int | None = setting(None)
    include_for_metrics: list[str] = field(default_factory=list)
    batch_eval_metrics: bool = setting(False)
    enable_jit_checkpoint: bool = setting(False)
    label_names: list[str] | None = setting(None)
    length_column_name: str = setting("length")
    do_train: bool = setting(False)
    do_eval: bool = setting(False)
    do_predict: bool = setting(False)
