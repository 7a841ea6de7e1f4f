"""A step at real sizes, phase by phase: seconds, memory, utilisation, with each prompt computed once and plainly.

    python scripts/bench/gpu/phases.py --model 3b --cases 2000,8,256 8000,8,256 16000,16,256 --plain
    python scripts/bench/gpu/phases.py --model 7b --lora --cases 2000,8,256

Random weights in bfloat16, gradient checkpointing, one prompt. The optimizer's update is left out. Rates are relative
to what this device reaches in a large matrix product. *Update* is vision, reference and policy together. Where the
plain path does not fit into memory, a row says so.
"""

from __future__ import annotations

import argparse

import torch
from measure import Measured, add_common, keep, matmul_rate, measured
from shapes import NAMES, Wanted, make_model, step_of

from bench_model import Case, Step, forward_flops, tower_flops  # isort: skip  (found once shapes is loaded)
from qwenvl.model import logprobs
from qwenvl.model.sharing import shared_prefix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=NAMES, default="3b")
    parser.add_argument("--cases", nargs="+", default=["2000,8,256"], metavar="P,G,C")
    parser.add_argument("--lora", action="store_true", help="rank 16 on the language model instead of full fine-tuning")
    parser.add_argument("--plain", action="store_true", help="the plain path too, where its memory suffices")
    parser.add_argument("--no_checkpointing", action="store_true")
    add_common(parser)
    options = parser.parse_args()
    rate = matmul_rate(options.device)
    wanted = Wanted(options.model, options.device, options.lora, checkpointing=not options.no_checkpointing)
    model = make_model(wanted)
    for text in options.cases:
        step = step_of(model, Case.parse(text))
        shared = phases_shared(step, options, rate)
        if options.plain:
            phases_plain(step, options, shared)


def phases_shared(step: Step, options: argparse.Namespace, rate: float) -> dict[str, Measured]:
    """The phases by the shared path."""
    path = shared_prefix.completion_logprobs
    forward, tower = forward_flops(step), tower_flops(step)
    phases = {"vision": _of(step.tower, options)}
    step.model.eval()
    phases["sampling"] = _of(step.shared_sample, options)
    of_reference = step.reference_logprobs(path, step.encoded)
    phases["reference"] = _of(lambda: step.reference_logprobs(path, step.encoded), options)
    step.model.train()
    phases["policy"] = _of(lambda: step.update(path, step.encoded, of_reference), options)
    work = {"vision": tower, "sampling": forward, "reference": forward, "policy": 3 * forward}
    for phase, spent in phases.items():
        _keep(options, step, "shared", phase, spent, of_product_rate=work[phase] / spent.seconds / rate)
    return phases


def phases_plain(step: Step, options: argparse.Namespace, shared: dict[str, Measured]) -> None:
    """The phases by the plain path, each once, with the ratios of the update and of sampling."""
    path = logprobs.completion_logprobs
    options = argparse.Namespace(**{**vars(options), "repeats": 0})
    try:
        step.model.eval()
        sampling = _of(step.plain_sample, options)
        of_reference = step.reference_logprobs(path, step.prompts)
        reference = _of(lambda: step.reference_logprobs(path, step.prompts), options)
        step.model.train()
        policy = _of(lambda: step.update(path, step.prompts, of_reference), options)
    except torch.OutOfMemoryError:
        keep(options, "phases", model=options.model, case=str(step.case), path="plain", phase="out of memory")
        torch.cuda.empty_cache()
        return
    for phase, spent in {"sampling": sampling, "reference": reference, "policy": policy}.items():
        _keep(options, step, "plain", phase, spent)
    update = sum(shared[phase].seconds for phase in ("vision", "reference", "policy"))
    keep(
        options,
        "ratios",
        model=options.model,
        lora=options.lora,
        case=str(step.case),
        update=(reference.seconds + policy.seconds) / update,
        sampling=sampling.seconds / (shared["vision"].seconds + shared["sampling"].seconds),
        memory_of_update=shared["policy"].memory / policy.memory if policy.memory and shared["policy"].memory else None,
    )


def _of(run, options: argparse.Namespace) -> Measured:
    return measured(run, options.device, options.repeats)


def _keep(options: argparse.Namespace, step: Step, path: str, phase: str, spent: Measured, **more: float) -> None:
    row = {"model": options.model, "lora": options.lora, "case": str(step.case), "tokens": step.prompt_tokens}
    keep(options, "phases", **row, path=path, phase=phase, seconds=spent.seconds, gib=spent.memory, **more)


if __name__ == "__main__":
    main()
