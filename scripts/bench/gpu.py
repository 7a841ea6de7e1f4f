"""A step on a GPU at real sizes, phase by phase: seconds, memory, utilisation, and what bounds decoding.

    python scripts/bench/gpu.py --model 3b --cases 2000,8,256 8000,8,256 16000,16,256
    python scripts/bench/gpu.py --model 7b --lora --cases 2000,8,256 --plain

Qwen2.5-VL shapes with random weights in bfloat16, gradient checkpointing, one prompt. The optimizer's update is left
out. Rates are relative to what this device reaches in a large matrix product and in a large copy, measured first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_model import Case, Step, forward_flops, tower_flops, video_prompt

from qwenvl.model import logprobs
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import apply_tuning, lora_config, unwrap
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.model.sharing import shared_prefix

TEXT = {
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 2},
    "3b": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16},
    "7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
}
KEY_VALUE_HEADS = {"tiny": 1, "3b": 2, "7b": 4}
VISION_DEPTH = {"tiny": 2, "3b": 32, "7b": 32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(TEXT), default="3b")
    parser.add_argument("--cases", nargs="+", default=["2000,8,256"], metavar="P,G,C")
    parser.add_argument("--lora", action="store_true", help="rank 16 on the language model instead of full fine-tuning")
    parser.add_argument("--plain", action="store_true", help="the plain path too, where its memory suffices")
    parser.add_argument("--no_checkpointing", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda", help="cpu serves to try the script")
    options = parser.parse_args()
    device = torch.device(options.device)
    flops, bandwidth = matmul_rate(device), copy_rate(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(f"{name}: {flops / 1e12:.0f} TFLOP/s in bfloat16 products, {bandwidth / 1e9:.0f} GB/s")
    model = make_model(options, device)
    for text in options.cases:
        report(model, Case.parse(text), options, flops, bandwidth)


def make_model(options: argparse.Namespace, device: torch.device) -> torch.nn.Module:
    """The shapes of a checkpoint with random weights."""
    text = TEXT[options.model] | {
        "num_key_value_heads": KEY_VALUE_HEADS[options.model],
        "vocab_size": 152064,
        "max_position_embeddings": 128000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    }
    depth = VISION_DEPTH[options.model]
    vision = {
        "depth": depth,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": text["hidden_size"],
        "window_size": 112,
        "fullatt_block_indexes": list(range(depth // 4 - 1, depth, depth // 4)) if depth > 3 else [depth - 1],
        "tokens_per_second": 2,
    }
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=options.model != "7b")
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = Qwen2_5_VLForConditionalGeneration(config)
    torch.set_default_dtype(default)
    model.config.get_text_config().pad_token_id = 0
    apply_tuning(model, TuneOptions())
    if options.lora:
        from peft import get_peft_model

        model = get_peft_model(model, lora_config(model, TuneOptions(tune_mm_mlp=False), LoraOptions(True, 16, 32)))
    if not options.no_checkpointing:
        unwrap(model).gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return model


def report(model: torch.nn.Module, case: Case, options: argparse.Namespace, flops: float, bandwidth: float) -> None:
    """Prints the phases of one case."""
    device = next(model.parameters()).device
    step = Step(model, on_device(video_prompt(unwrap(model), case.prompt), device), case)
    forward, tower = forward_flops(step), tower_flops(step)
    mode = "LoRA" if options.lora else "full"
    print(f"\n{options.model} {mode}, {case}: {step.prompt_tokens} prompt tokens")
    vision = timed("vision", step.tower, options, tower, flops)
    model.eval()
    prefill = timed("prefill", lambda: step.sample(1), options)
    sample = timed("sampling", lambda: step.sample(case.length), options, forward, flops)
    decode = (sample - prefill) / max(1, case.length - 1)
    floor = decode_bytes(step) / bandwidth
    print(f"    a token of all completions {1e3 * decode:.1f} ms; reading weights and cache {1e3 * floor:.1f} ms")
    path = shared_prefix.completion_logprobs
    of_reference = step.reference_logprobs(path, step.encoded)
    reference = timed("reference", lambda: step.reference_logprobs(path, step.encoded), options, forward, flops)
    model.train()
    policy = timed("policy", lambda: step.update(path, step.encoded, of_reference), options, 3 * forward, flops)
    total = vision + sample + reference + policy
    tokens = step.prompt_tokens + case.group * case.length
    print(f"  step {total:.2f} s; {tokens / total:.0f} prompt and completion tokens a second")
    if options.plain:
        report_plain(step, options, total)


def report_plain(step: Step, options: argparse.Namespace, shared: float) -> None:
    """Prints the phases of the plain path, or that memory does not suffice."""
    path = logprobs.completion_logprobs
    try:
        step.model.eval()
        sample = timed("plain sampling", step.plain_sample, options)
        of_reference = step.reference_logprobs(path, step.prompts)
        reference = timed("plain reference", lambda: step.reference_logprobs(path, step.prompts), options)
        step.model.train()
        policy = timed("plain policy", lambda: step.update(path, step.prompts, of_reference), options)
        total = sample + reference + policy
        print(f"  plain step {total:.2f} s, {total / shared:.1f} x")
    except torch.OutOfMemoryError:
        print("  plain path: out of memory")
        torch.cuda.empty_cache()


def timed(
    name: str, run: Callable[[], object], options: argparse.Namespace, work: float | None = None, rate: float = 1.0
) -> float:
    """Median seconds after one run that is not counted. Prints them with the peak memory."""
    gpu = options.device.startswith("cuda")
    times = []
    for turn in range(options.repeats + 1):
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        run()
        if gpu:
            torch.cuda.synchronize()
        if turn:
            times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    memory = f"{torch.cuda.max_memory_allocated() / 2**30:6.1f} GiB" if gpu else ""
    used = f"{work / seconds / rate:6.0%} of the product rate" if work else ""
    print(f"  {name:16} {seconds:8.3f} s  {memory}  {used}")
    return seconds


def decode_bytes(step: Step) -> int:
    """What one decoding step must read: the language model, the prompt's keys and values, half of the completions'."""
    bare = unwrap(step.model)
    text = bare.config.get_text_config()
    weights = sum(p.numel() * p.element_size() for p in bare.model.language_model.layers.parameters())
    weights += bare.lm_head.weight.numel() * bare.lm_head.weight.element_size()
    tokens = step.prompt_tokens + step.case.group * step.case.length // 2
    head = text.hidden_size // text.num_attention_heads
    return weights + tokens * text.num_hidden_layers * text.num_key_value_heads * head * 2 * 2


def matmul_rate(device: torch.device) -> float:
    """Floating-point operations per second of a large bfloat16 product."""
    size = 8192 if device.type == "cuda" else 512
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    return 2 * size**3 / fastest(lambda: a @ a, device)


def copy_rate(device: torch.device) -> float:
    """Bytes read and written per second by a large copy."""
    a = torch.empty(2**30 if device.type == "cuda" else 2**24, device=device, dtype=torch.uint8)
    b = torch.empty_like(a)
    return 2 * a.numel() / fastest(lambda: b.copy_(a), device)


def fastest(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the best of 20 runs."""
    best = float("inf")
    for _ in range(20):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def on_device(prompts: PromptInputs, device: torch.device) -> PromptInputs:
    """The same prompts on ``device``."""
    tensors = {f.name: value for f in fields(prompts) if isinstance(value := getattr(prompts, f.name), torch.Tensor)}
    return replace(prompts, **{name: value.to(device) for name, value in tensors.items()})


if __name__ == "__main__":
    main()
