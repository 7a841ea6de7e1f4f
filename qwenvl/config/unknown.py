"""The message for a flag or setting that does not exist: its name here, or names that are near to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

from qwenvl.config.flags import OF_TRAINING
from qwenvl.config.own_options import TrainerOptions, WarmupOptions

_ARGUMENTS = (
    *("cosine(max_len=512)", "cosine(min_len_value_correct=1.0)"),
    *("cosine(max_len_value_correct=0.5)", "cosine(min_len_value_wrong=-0.5)", "cosine(max_len_value_wrong=0.0)"),
    *("repetition(n_grams=3)", "repetition(max_penalty=-1.0)", "soft_overlong(max_len=512)"),
    *("soft_overlong(cache=100)", "length_window(min=320)", "length_window(max=512)", "length_window(bonus=0.2)"),
    *("numeric(tolerance=0.01)", "temporal_iou(boundary=True)", "judge(base_url='http://localhost:8000/v1')"),
    *("judge(model='NAME')", "judge(prompt='prompt.txt')", "judge(correct=1.0)", "judge(wrong=0.0)"),
    *("judge(bad_format=0.0)", "judge(timeout=60)", "judge(retries=4)", "judge(concurrency=16)"),
)
"""Arguments of reward functions that had a flag each, such as ``cosine_max_len``."""
_RATIO = '--loss_type "grpo(ratio=sequence)"'
_MASK = '--loss_type "grpo(off_policy_mask=0.5)"'
_CORRECTION = '--importance_correction "token_truncate(max=3, min=0.5)"'
_CONTRAST = '--temporal_contrast "accuracy(share=0.5, margin=0, bonus=0.3)"'
_FILTER = '--filter_groups "total(max_rounds=3)"'
_DIFFICULTY = "--filter_groups, or take out records that are too easy or too hard by the pass rates of qwenvl probe"
_DECODING = "--dataloader_num_workers: more processes decode clips while a step runs"
_LARGE_FILES = "no flag: files of more than 512 MB or 20,000 records are read one record at a time"
SUCCESSORS = {
    **{text.split("=")[0].replace("(", "_"): f'--reward_funcs "{text}"' for text in _ARGUMENTS},
    "warmup_ratio": "--warmup_steps with a value below 1, which is a share of all steps",
    "evaluation_strategy": "--eval_strategy",
    "logging_dir": "the environment variable TENSORBOARD_LOGGING_DIR",
    "no_cuda": "--use_cpu",
    "lr": "--learning_rate",
    "num_generations": "--grpo_sample_size",
    "max_completion_length": "--generation_max_length",
    "beta": "--grpo_beta",
    "temperature": "--generation_temperature",
    "top_k": "--generation_top_k",
    "top_p": "--generation_top_p",
    "min_p": "--generation_min_p",
    "repetition_penalty": "--generation_repetition_penalty",
    "num_generations_eval": "--eval_sample_size",
    "steps_per_generation": "--num_iterations",
    "generation_batch_size": "--num_iterations",
    "use_vllm": "--rollout_engine vllm_server or vllm_colocate",
    "vllm_mode": "--rollout_engine vllm_server or vllm_colocate",
    "vllm_server_host": "--vllm_server HOST:PORT",
    "vllm_server_port": "--vllm_server HOST:PORT",
    "vllm_server_base_url": "--vllm_server HOST:PORT",
    "vllm_server_timeout": "--vllm_patience",
    "vllm_gpu_memory_utilization": "--vllm_gpu_memory",
    "vllm_weights": "no flag: a server on this machine reads weights from memory, another gets messages",
    "vision_cache": "no flag: the vision tower runs once per prompt and step",
    **dict.fromkeys(("frame_cache", "cache_gb", "frame_cache_gb"), _DECODING),
    "allow_remote_media": "no flag: download the files, and write the paths of the copies into the records",
    "frame_sampler": "--video_fps and --video_max_frames, or video_start and video_end in the record's `meta`",
    "vllm_importance_sampling_mode": "--importance_correction",
    "vllm_importance_sampling_clip_max": _CORRECTION,
    "vllm_importance_sampling_clip_min": _CORRECTION,
    "importance_correction_max": _CORRECTION,
    "importance_correction_min": _CORRECTION,
    "multi_objective_aggregation": "--advantage_estimator gdpo",
    "reward_aggregation": "--advantage_estimator gdpo",
    "reward_timeout": "--stall_timeout, which ends a run that hangs and says where",
    "reward_workers": '--reward_funcs "math_accuracy(workers=4)"',
    "use_adaptive_entropy": "--entropy_target",
    "log_completions": "--log_completions_every to see some; all are in the run folder",
    "disable_dropout": "--lora_dropout 0, the default",
    "shuffle_dataset": "--train_sampling_strategy",
    "model_init_kwargs": "--attn_implementation and --bf16",
    "epsilon": "--grpo_epsilon",
    "epsilon_high": "--grpo_epsilon_high",
    "delta": '--loss_type "grpo(delta=4)"',
    "grpo_delta": '--loss_type "grpo(delta=4)"',
    "dual_clip": '--loss_type "grpo(dual_clip=3)"',
    "cispo_bound": '--loss_type "cispo(bound=5)"',
    "importance_sampling_level": _RATIO,
    "off_policy_mask_threshold": _MASK,
    "use_bias_correction_kl": '--kl_estimator "k3(unbiased=True)"',
    "kl_unbiased": '--kl_estimator "k3(unbiased=True)"',
    "kl_in_reward": '--advantage_estimator "reinforce_plus_plus(kl_in_reward=True)"',
    "ref_offload": "--lora_enable, whose reference takes no memory, or --grpo_beta 0, which needs none",
    "entropy_coef_delta": "--entropy_target, which moves the weight by 0.005",
    "entropy_coef_step": "--entropy_target, which moves the weight by 0.005",
    "filter_by": _FILTER,
    "max_resample_rounds": _FILTER,
    "on_unfilled_step": "no flag: filter/unfilled_frac of the log is the share of groups that no round could replace",
    "correctness_func": _CONTRAST,
    "temporal_contrast_share": _CONTRAST,
    "temporal_contrast_margin": _CONTRAST,
    "temporal_contrast_bonus": _CONTRAST,
    "update_card": "no flag: quote the printed table in the model card, which has the evaluations of its run",
    "difficulty_band": _DIFFICULTY,
    "difficulty_by": _DIFFICULTY,
    "difficulty_window": _DIFFICULTY,
    "difficulty_weight": _DIFFICULTY,
    **dict.fromkeys(("stream_above_mb", "stream_above_records"), _LARGE_FILES),
    "model": "--model_name_or_path",
    "dataset": "--dataset_use",
    "dataset_name": "--dataset_use",
    "val_dataset": "--eval_dataset_use",
    "ref_model": "--ref_model_name_or_path",
    "lora_rank": "--lora_r",
    "freeze_llm": "--tune_mm_llm, which says the opposite",
    "freeze_vit": "--tune_mm_vision, which says the opposite",
    "freeze_aligner": "--tune_mm_mlp, which says the opposite",
    "vit_lr": "--vision_tower_lr",
    "aligner_lr": "--mm_projector_lr",
    "stop_words": "--stop_strings",
    "overlong_filter": "--mask_truncated_completions",
    "max_resample_times": _FILTER,
    "soft_max_length": '--reward_funcs "soft_overlong(max_len=512)"',
    "soft_cache_length": '--reward_funcs "soft_overlong(cache=100)"',
    "temporal": "--temporal_contrast",
    "strata": "docs/evaluation.md, which computes numbers by any key of the samples in four lines",
    "serve": "qwenvl report again, which shows a running run so far; python -m http.server serves its folder",
    "picture": "qwenvl preview: its page has the frames as the model sees them",
    "box_units": "--reward_funcs \"box_iou(units='thousandths')\"",
    "auto_fit": "qwenvl plan, which names the flags that make a run fit",
    "fit_memory_gb": "qwenvl plan --gpu_memory",
    "warmup": "qwenvl plan with the flags of the training that follows: a warm-up needs less memory",
    "records": "no flag: qwenvl plan measures 1000 records",
    "json": "plan_of(*request_of(words)) of qwenvl.train.planning.command, which gives a plan's numbers to a script",
    "len_control": "the reward length_window among --reward_funcs",
}
"""Flags of earlier versions and of other trainers, and what to use here."""
OF_A_WARMUP = {each.name for each in fields(WarmupOptions)} - {each.name for each in fields(TrainerOptions)}


def unknown_flag(token: str, known: Iterable[str]) -> str:
    """The message for a flag that does not exist, or for a word that belongs to none.

    Args:
        known: the names that there are.
    """
    known, name = set(known), token.split("=")[0].lstrip("-").replace("-", "_")
    if name in SUCCESSORS:
        return f"unknown flag {name}; use {SUCCESSORS[name]}"
    if (flag := name.removeprefix("no_")) in OF_TRAINING and flag not in known:
        return f"--{flag} has no effect in a warm-up: {OF_TRAINING[flag]}; leave it out"
    if name in OF_A_WARMUP:
        return f"unknown flag {name}; qwenvl warmup has it"
    if not token.startswith("-") and Path(token).suffix:
        return (
            f"stray word {token}; a file of settings comes first, there is one, and its name ends in .yaml, .yml or "
            ".json"
        )
    near = get_close_matches(name, sorted(known))
    return f"unknown flag {token}; " + (f"near: {', '.join(near)}" if near else "--help all lists them")
