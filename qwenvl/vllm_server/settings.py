"""The command line of the server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

VLLM = "0.32.0"  # held to the trainer. scripts/serve_vllm.sh reads this line and installs it


@dataclass(frozen=True)
class Settings:
    """What a server is started with. The options' help says what each is."""

    model: str
    host: str
    port: int
    dtype: str
    max_model_len: int
    max_num_seqs: int
    cache_gb: float | None
    gpu_memory_utilization: float
    tensor_parallel_size: int
    compiled: bool
    sleeps: bool
    with_parent: bool
    ready_file: str | None


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Settings from the command line. What cannot be is told as argparse tells it, with exit status 2."""
    parser = argparse.ArgumentParser(
        prog="serve_vllm.sh",
        description="Sample completions for a trainer with vLLM. The trainer sends the weights and the prompts.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("model", help="the checkpoint that the training starts from: a folder, or a name on the hub")
    add("--host", default="127.0.0.1", help="address to listen at")
    add("--port", type=int, default=8200, help="0: any that is free")
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"], help="of weights; auto: stored")
    add("--max_model_len", type=int, default=32768, help="most tokens of a prompt and its completion together")
    add("--max_num_seqs", type=int, default=256, help="most completions that are sampled at the same time")
    add("--cache_gb", type=float, help="memory for keys and values, in GiB; on a CPU 1 where nobody says")
    add("--gpu_memory_utilization", type=float, default=0.9, help="share of the GPU's memory, where no --cache_gb is")
    add("--tensor_parallel_size", type=int, default=1, help="GPUs that the model is split over (not run so far)")
    add("--compiled", action="store_true", help="compile the model and use CUDA graphs (not run so far)")
    add("--sleeps", action="store_true", help="can give its GPU memory back between samplings (not run so far)")
    add("--with_parent", action="store_true", help="end when the process that started this one has ended")
    add("--ready_file", help="written when the server is ready: its address")
    settings = Settings(**vars(parser.parse_args(argv)))
    if problem := _problem(settings):
        parser.error(problem)
    return settings


def _problem(settings: Settings) -> str | None:
    for name in ("max_model_len", "max_num_seqs", "tensor_parallel_size"):
        if getattr(settings, name) < 1:
            return f"--{name} must be at least 1"
    if not 0 < settings.gpu_memory_utilization <= 1:
        return "--gpu_memory_utilization must be above 0 and at most 1"
    if settings.cache_gb is not None and settings.cache_gb <= 0:
        return "--cache_gb must be above 0"
    return None
