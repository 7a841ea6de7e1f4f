"""Names of settings that other libraries have, and the answer to a flag that does not exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

HERE_FOR = {
    # transformers, in earlier versions
    "warmup_ratio": "--warmup_steps with a value below 1, which is a share of all steps",
    "evaluation_strategy": "--eval_strategy",
    "logging_dir": "the environment variable TENSORBOARD_LOGGING_DIR",
    "no_cuda": "--use_cpu",
    "lr": "--learning_rate",
    # TRL, which Unsloth trains with
    "num_generations": "--grpo_sample_size",
    "num_generations_eval": "--eval_sample_size",
    "max_completion_length": "--generation_max_length",
    "temperature": "--generation_temperature",
    "top_k": "--generation_top_k",
    "top_p": "--generation_top_p",
    "min_p": "--generation_min_p",
    "repetition_penalty": "--generation_repetition_penalty",
    "beta": "--grpo_beta",
    "epsilon": "--grpo_epsilon",
    "epsilon_high": "--grpo_epsilon_high",
    "delta": '--loss_type "grpo(delta=4)"',
    "importance_sampling_level": '--loss_type "grpo(ratio=sequence)"',
    "off_policy_mask_threshold": '--loss_type "grpo(off_policy_mask=0.5)"',
    "use_bias_correction_kl": '--kl_estimator "k3(unbiased=True)"',
    "multi_objective_aggregation": "--advantage_estimator gdpo",
    "use_adaptive_entropy": "--entropy_target",
    "entropy_coef_delta": "--entropy_target, which moves the weight by 0.005",
    "steps_per_generation": "--num_iterations",
    "generation_batch_size": "--num_iterations",
    "use_vllm": "--rollout_engine vllm_server or vllm_colocate",
    "vllm_mode": "--rollout_engine vllm_server or vllm_colocate",
    "vllm_server_host": "--vllm_server HOST:PORT",
    "vllm_server_port": "--vllm_server HOST:PORT",
    "vllm_server_base_url": "--vllm_server HOST:PORT",
    "vllm_server_timeout": "--vllm_patience",
    "vllm_gpu_memory_utilization": "--vllm_gpu_memory",
    "vllm_importance_sampling_mode": "--importance_correction",
    "vllm_importance_sampling_clip_max": '--importance_correction "token_truncate(max=3)"',
    "vllm_importance_sampling_clip_min": '--importance_correction "token_truncate(min=0.5)"',
    "log_completions": "--log_completions_every to see some; all are in the run folder",
    "disable_dropout": "--lora_dropout 0, the default",
    "shuffle_dataset": "--train_sampling_strategy",
    "model_init_kwargs": "--attn_implementation and --bf16",
    "dataset_name": "--dataset_use",
    # ms-swift
    "model": "--model_name_or_path",
    "dataset": "--dataset_use",
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
    "kl_in_reward": '--advantage_estimator "reinforce_plus_plus(kl_in_reward=True)"',
    "dynamic_sample": "--filter_groups",
    "max_resample_times": '--filter_groups "total(max_rounds=3)"',
    "soft_max_length": '--reward_funcs "soft_overlong(max_len=512)"',
    "soft_cache_length": '--reward_funcs "soft_overlong(cache=100)"',
    "cosine_max_len": '--reward_funcs "cosine(max_len=512)"',
    "repetition_n_grams": '--reward_funcs "repetition(n_grams=3)"',
    "repetition_max_penalty": '--reward_funcs "repetition(max_penalty=-1.0)"',
    # Video-R1
    "temporal": "--temporal_contrast",
    "len_control": "the reward length_window among --reward_funcs",
}
"""The setting here for a name that people type who come from another library; see ``docs/coming_from.md``."""


def unknown_flag(token: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """The message for a flag that does not exist, or for a word that belongs to none.

    Args:
        known: the names of all flags.
        elsewhere: messages about flags that other commands have, by name.
    """
    known = set(known)
    name = token.split("=")[0].lstrip("-").replace("-", "_")
    flag = name.removeprefix("no_")
    if elsewhere and flag in elsewhere and flag not in known:
        return elsewhere[flag]
    if name in HERE_FOR:
        return f"unknown flag {name}; use {HERE_FOR[name]}"
    if not token.startswith("-") and Path(token).suffix:
        return (
            f"stray word {token}; a file of settings comes first, there is one, and its name ends in .yaml, .yml or "
            ".json"
        )
    near = get_close_matches(name, sorted(known))
    advice = f"near: {', '.join(near)}" if near else "--help all lists them"
    return f"unknown flag {token}; {advice}"
