"""Milliseconds per token of all completions against the bandwidth floor: eager, compiled, as a CUDA graph, both.

    python scripts/bench/gpu/decoding.py --models 3b qwen3_5_4b --case 2000,8,128

The floor is the time to read weights and cache once at the rate of a large copy.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch
from measure import add_common, copy_rate, keep, measured, wait
from shapes import NAMES, Wanted, make_step

from bench_model import Case, Step  # isort: skip  (found once shapes is loaded)
from qwenvl.model.loading import unwrap

WAYS: dict[str, dict[str, bool]] = {
    "eager": {"compiled": False, "cuda_graph": False},
    "compiled": {"compiled": True, "cuda_graph": False},
    "graph": {"compiled": False, "cuda_graph": True},
    "both": {"compiled": True, "cuda_graph": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=["3b"])
    parser.add_argument("--case", default="2000,8,128", metavar="P,G,C")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    add_common(parser)
    options = parser.parse_args()
    bandwidth = copy_rate(options.device)
    for name in options.models:
        step = make_step(Wanted(name, options.device, checkpointing=False), Case.parse(options.case))
        step.model.eval()
        floor = 1e3 * decode_bytes(step) / bandwidth
        for way in options.ways:
            try:
                row = decoded(step, way, options)
            except Exception as error:  # a compiler has many ways to fail, and the other ways are still worth a look
                row = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:160]}
            keep(options, "decoding", model=name, case=options.case, way=way, floor_ms=floor, **row)


def decoded(step: Step, way: str, options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of a token: the difference of a long and a short draw, so that the prefill falls out."""
    settings = WAYS[way]
    short, long = max(2, step.case.length // 8), step.case.length
    torch._dynamo.reset()
    start = time.perf_counter()
    step.sample(short, **settings)
    wait(options.device)
    first = time.perf_counter() - start
    runs = [partial(step.sample, tokens, **settings) for tokens in (short, long)]
    spent = [measured(run, options.device, options.repeats) for run in runs]
    return {"ms_a_token": 1e3 * (spent[1].seconds - spent[0].seconds) / (long - short), "first_call_s": first}


def decode_bytes(step: Step) -> int:
    """What one token of all completions must read: weights, the prompt's keys and values, half of the completions'.

    A layer of linear attention reads and writes its state for each completion.
    """
    bare, case = unwrap(step.model), step.case
    text = bare.config.get_text_config()
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    tokens = step.prompt_tokens + case.group * case.length // 2
    read = bare.lm_head.weight.numel() * bare.lm_head.weight.element_size()
    for layer in bare.model.language_model.layers:
        read += sum(p.numel() * p.element_size() for p in layer.parameters())
        if hasattr(layer, "self_attn"):
            read += tokens * text.num_key_value_heads * head_dim * 2 * 2
        else:
            read += 2 * case.group * 4 * layer.linear_attn.value_dim * layer.linear_attn.head_k_dim
    return read


if __name__ == "__main__":
    main()
