"""Measurements that need a GPU, at the sizes of real checkpoints with random weights.

    python scripts/bench/gpu.py exact --models 3b qwen3_vl_4b qwen3_5_4b
    python scripts/bench/gpu.py phases --models 3b --cases 2000,8,256 16000,16,256 --plain
    python scripts/bench/gpu.py decoding --models 3b qwen3_5_4b
    python scripts/bench/gpu.py exact phases decoding --rehearse      # tiny models on the CPU, to try the script

exact: sampler against trainer (parity), and the distance of the shared and of the plain path, both in bfloat16, from
the plain path in float32. Rounding moves both: a ratio of about 1 is right.
phases: seconds and GiB of a step by phase, gradient checkpointing on, without the optimizer's update.
decoding: milliseconds per token of all completions against the floor, the time to read weights and cache once.

A case is prompt tokens, completions, completion tokens. It needs no weights and no clips.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

sys.path.insert(0, str(Path(__file__).resolve().parent))
from step import LOGPROB_SETTINGS, Case, Step, video_prompt

from qwenvl.demo.tiny import FAMILIES, make_processor
from qwenvl.demo.tiny import make_model as make_tiny
from qwenvl.grpo.diagnostics import logprob_gap
from qwenvl.model import logprobs
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import apply_tuning, lora_config, unwrap
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.model.sharing import shared_prefix
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.shared_sampling import SharedSampler

CASES = {"exact": ["500,4,64"], "phases": ["2000,8,256"], "decoding": ["2000,8,128"]}
WAYS = {"eager": (False, False), "compiled": (True, False), "graph": (False, True), "both": (True, True)}
"""Ways of decoding: whether the layers are compiled, and whether a token is a CUDA graph."""


def _text(width: int, inner: int, layers: int, heads: int, shared: int, rope: dict, **more: Any) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    sizes = dict(zip(names, (width, inner, layers, heads, shared), strict=True))
    return {**sizes, "max_position_embeddings": 262144, "rope_parameters": {"rope_type": "default", **rope}, **more}


def _tower(depth: int, width: int, inner: int, out: int, **more: Any) -> dict[str, Any]:
    return {"depth": depth, "hidden_size": width, "intermediate_size": inner, "out_hidden_size": out, **more}


OLD = {"rope_theta": 1e6, "mrope_section": [16, 24, 24]}
VL3 = {"rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
Q35 = {"rope_theta": 1e7, "mrope_section": [11, 11, 10], "mrope_interleaved": True, "partial_rotary_factor": 0.25}
SHAPES = {
    "3b": (
        "qwen2_5_vl",
        _text(2048, 11008, 36, 16, 2, OLD, vocab_size=151936),
        _tower(32, 1280, 3420, 2048, tokens_per_second=2),
        True,
    ),
    "7b": (
        "qwen2_5_vl",
        _text(3584, 18944, 28, 28, 4, OLD, vocab_size=152064),
        _tower(32, 1280, 3420, 3584, tokens_per_second=2),
        False,
    ),
    "qwen3_vl_4b": (
        "qwen3_vl",
        _text(2560, 9728, 36, 32, 8, VL3, head_dim=128),
        _tower(24, 1024, 4096, 2560, patch_size=16, deepstack_visual_indexes=[5, 11, 17]),
        True,
    ),
    "qwen3_vl_8b": (
        "qwen3_vl",
        _text(4096, 12288, 36, 32, 8, VL3, head_dim=128),
        _tower(27, 1152, 4304, 4096, patch_size=16, deepstack_visual_indexes=[8, 16, 24]),
        False,
    ),
    "qwen3_5_4b": (
        "qwen3_5",
        _text(2560, 9216, 32, 16, 4, Q35),
        {"depth": 24, "hidden_size": 1024, "out_hidden_size": 2560},
        True,
    ),
}
"""Family, sizes of text and vision beside the defaults of the class, and whether the head is tied."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=CASES)
    parser.add_argument("--models", nargs="+", default=["3b"], choices=[*SHAPES, *(f"tiny_{f}" for f in FAMILIES)])
    parser.add_argument("--cases", nargs="+", metavar="P,G,C")
    parser.add_argument("--attention", default="sdpa", help="an implementation of transformers")
    parser.add_argument("--lora", action="store_true", help="phases: rank 16 instead of full fine-tuning")
    parser.add_argument("--plain", action="store_true", help="phases: the plain path too")
    parser.add_argument("--no_gradients", action="store_true", help="exact: for models whose float32 copy does not fit")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="decoding: how")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=151_936, help="of tiny models [%(default)s]")
    parser.add_argument("--results", type=Path, help="a file that rows are added to, as JSON lines")
    parser.add_argument("--rehearse", action="store_true", help="tiny models on the CPU")
    options = parser.parse_args(argv)
    options.device = torch.device("cpu" if options.rehearse else "cuda")
    if options.rehearse:
        options.models, options.cases, options.ways = ["tiny_qwen2_5_vl", "tiny_qwen3_5"], ["200,2,4"], ["eager"]
    for part in options.parts:
        for name in options.models:
            model = make_model(name, options, trained=part != "decoding")
            for text in options.cases or CASES[part]:
                step = make_step(model, Case.parse(text))
                for row in {"exact": exact, "phases": phases, "decoding": decoding}[part](step, options):
                    keep(options, part=part, model=name, case=text, **row)


def make_model(name: str, options: argparse.Namespace, trained: bool) -> nn.Module:
    """A model with random weights in bfloat16; ``trained``: with gradient checkpointing, and adapters with --lora."""
    if name.startswith("tiny_"):
        family = name.removeprefix("tiny_")
        model = make_tiny(family, make_processor(family), hidden_size=128, vocabulary=options.vocabulary)
        model.set_attn_implementation(options.attention)
        model = model.to(options.device, torch.bfloat16)
    else:
        family, text, vision, tied = SHAPES[name]
        config = CONFIG_MAPPING[family](text_config=text, vision_config=vision, tie_word_embeddings=tied)
        settings = {"dtype": torch.bfloat16, "attn_implementation": options.attention}
        with options.device:
            model = AutoModelForImageTextToText.from_config(config, **settings).eval()
    model.config.get_text_config().pad_token_id = 0
    apply_tuning(model, TuneOptions())
    if trained and options.lora:
        from peft import get_peft_model

        model = get_peft_model(model, lora_config(model, TuneOptions(tune_mm_mlp=False), LoraOptions(True, 16, 32)))
    if trained:
        unwrap(model).gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return model


def make_step(model: nn.Module, case: Case) -> Step:
    """A prompt of one video, on the model's device."""
    prompts, device = video_prompt(unwrap(model), case.prompt), next(model.parameters()).device
    tensors = {f.name: value for f in fields(prompts) if isinstance(value := getattr(prompts, f.name), Tensor)}
    return Step(model, replace(prompts, **{name: value.to(device) for name, value in tensors.items()}), case)


def exact(step: Step, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Parity of sampler and trainer, and distances from float32 with their ratios."""
    step.model.eval()
    bare, params = unwrap(step.model), SamplingParams(step.case.length)
    pads = [bare.config.image_token_id, bare.config.video_token_id]  # sampled, they would be taken for pictures
    ids, drawn = SharedSampler(bare, step.encoded, step.case.group, params, suppress=pads, end_ids=[], pad_id=0).first()
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        trained = shared_prefix.completion_logprobs(step.model, step.encoded, ids, mask, **LOGPROB_SETTINGS)
    largest, mean = logprob_gap(drawn.logprobs, trained, mask)
    row = {"parity_max": largest, "parity_mean": mean}
    if options.no_gradients:
        return [row]
    step.model.train()
    shared = passed(step.model, step, shared_prefix.completion_logprobs, step.encoded)
    plain = passed(step.model, step, logprobs.completion_logprobs, step.prompts)
    wide = passed(deepcopy(step.model).float(), step, logprobs.completion_logprobs, step.prompts)
    far = [(one[0] - wide[0]).square().mean().sqrt().item() for one in (shared, plain)]
    off = [relative(one[1], wide[1]) for one in (shared, plain)]
    return [{**row, "logprobs_ratio": far[0] / far[1], "gradients_ratio": off[0] / off[1]}]


def passed(model: nn.Module, step: Step, path: Callable, prompts: PromptInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs, and the gradient of their weighted sum for every trained parameter."""
    drawn = path(model, prompts, step.completion_ids, step.mask, **LOGPROB_SETTINGS)
    (step.weights * drawn).mean().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return drawn.detach().float(), grads


def relative(grads: dict[str, Tensor], wide: dict[str, Tensor]) -> float:
    """The distance of gradients from those in float32, relative to the size of the latter."""
    away = sum((grad.float() - wide[name]).square().sum().item() for name, grad in grads.items())
    return (away / max(sum(each.square().sum().item() for each in wide.values()), 1e-30)) ** 0.5


def phases(step: Step, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds and memory by phase. The plain path runs once, without a warm-up."""
    rows = _phases(step, "shared", shared_prefix.completion_logprobs, step.encoded, options, options.repeats)
    if options.plain:
        try:
            rows += _phases(step, "plain", logprobs.completion_logprobs, step.prompts, options, 0)
        except torch.OutOfMemoryError:
            rows.append({"path": "plain", "phase": "out of memory"})
            torch.cuda.empty_cache()
    return rows


def _phases(step: Step, path: str, forward: Callable, prompts: PromptInputs, options, repeats: int) -> list[dict]:
    of = partial(measured, device=options.device, repeats=repeats)
    found = {"vision": of(step.tower)} if path == "shared" else {}
    step.model.eval()
    found["sampling"] = of(getattr(step, f"{path}_sample"))
    of_reference = step.reference_logprobs(forward, prompts)
    found["reference"] = of(lambda: step.reference_logprobs(forward, prompts))
    step.model.train()
    found["policy"] = of(lambda: step.update(forward, prompts, of_reference))
    return [{"path": path, "phase": name, "seconds": s, "gib": gib} for name, (s, gib) in found.items()]


def decoding(step: Step, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds per token in each way: the difference of a long and a short draw, so that the prefill falls out."""
    step.model.eval()
    floor, rows = 1e3 * decode_bytes(step) / copy_rate(options.device), []
    short, long = max(2, step.case.length // 8), step.case.length
    for way in options.ways:
        compiled, graph = WAYS[way]
        torch._dynamo.reset()
        draw = partial(step.sample, compiled=compiled, cuda_graph=graph)
        first = measured(partial(draw, short), options.device, 0)[0]
        spent = [measured(partial(draw, tokens), options.device, options.repeats)[0] for tokens in (short, long)]
        each = 1e3 * (spent[1] - spent[0]) / (long - short)
        rows.append({"way": way, "floor_ms": floor, "ms_a_token": each, "first_call_s": first})
    return rows


def decode_bytes(step: Step) -> int:
    """Bytes that one token of all completions must read: weights, keys and values or states."""
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


def measured(run: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, float | None]:
    """Median seconds of ``repeats`` runs after a warm-up (0: of that one), and the most GiB over what was held."""
    times, most, held = [], 0, 0
    for turn in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            held = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            most = max(most, torch.cuda.max_memory_allocated(device) - held)
        if turn or not repeats:
            times.append(time.perf_counter() - start)
    return statistics.median(times), most / 2**30 if device.type == "cuda" else None


def copy_rate(device: torch.device) -> float:
    """Bytes read and written per second by a large copy."""
    a = torch.empty(2**30 if device.type == "cuda" else 2**24, device=device, dtype=torch.uint8)
    b = torch.empty_like(a)
    return 2 * a.numel() / min(measured(lambda: b.copy_(a), device, 0)[0] for _ in range(20))


def keep(options: argparse.Namespace, **row: Any) -> None:
    """Print a row, and add it to the file of results."""
    numbers = {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
    print("  ".join(f"{name} {value}" for name, value in numbers.items() if value is not None), flush=True)
    if options.results:
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(numbers) + "\n")


if __name__ == "__main__":
    main()
