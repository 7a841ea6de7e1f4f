"""Attention of a packed row, forward and backward: ours against ``flex_attention`` with a mask of blocks.

    python scripts/bench/gpu/attention.py --cases 2000,8,256 16000,16,256

Heads of the 3B shape: 16 of 128, sharing 2 key-value heads. If ``flex_attention`` is as fast, it is the simpler one to
keep.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from measure import Measured, add_common, keep, measured
from shapes import Wanted  # noqa: F401  (it makes bench_model found)
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from bench_model import Case  # isort: skip  (found once shapes is loaded)
from qwenvl.model.sharing.prefix_attention import PrefixLayout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["2000,8,256"], metavar="P,G,C")
    parser.add_argument("--heads", default="16,2,128", metavar="HEADS,SHARED,WIDTH")
    add_common(parser)
    options = parser.parse_args()
    heads, shared, width = (int(part) for part in options.heads.split(","))
    for text in options.cases:
        case = Case.parse(text)
        total = case.prompt + case.group * case.length
        sizes = (heads, shared, shared)
        q, k, v = (torch.randn(total, n, width, device=options.device, dtype=torch.bfloat16) for n in sizes)
        tensors = [x.requires_grad_() for x in (q, k, v)]
        layout = PrefixLayout((case.prompt,), (case.length,) * case.group, options.device)
        scale = width**-0.5
        ours = both(partial(layout.attend, 0, *tensors, scale), tensors, options)
        keep(options, "attention", case=text, way="ours", ms=1e3 * ours.seconds, gib=ours.memory)
        try:
            theirs = both(flex(case, tensors, scale), tensors, options)
            keep(options, "attention", case=text, way="flex_attention", ms=1e3 * theirs.seconds, gib=theirs.memory)
        except Exception as error:  # a compiler has many ways to fail
            failed = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            keep(options, "attention", case=text, way="flex_attention", failed=failed)


def both(run: Callable[[], Tensor], tensors: list[Tensor], options: argparse.Namespace) -> Measured:
    """Forward and backward."""

    def once() -> None:
        run().sum().backward()
        for x in tensors:
            x.grad = None

    return measured(once, options.device, options.repeats)


def flex(case: Case, tensors: list[Tensor], scale: float) -> Callable[[], Tensor]:
    """The same attention by a mask: each token sees the prompt and its own completion, as far as itself."""
    prompt, length, device = case.prompt, case.length, tensors[0].device

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        own = (q - prompt) // length == (k - prompt) // length
        return (q >= k) & ((k < prompt) | ((q >= prompt) & own))

    total = len(tensors[0])
    mask = create_block_mask(sees, None, None, total, total, device=device.type)
    compiled = torch.compile(flex_attention)
    # The rows are 1 x heads x S x width there.
    return lambda: compiled(*(x.transpose(0, 1)[None] for x in tensors), block_mask=mask, scale=scale, enable_gqa=True)[
        0
    ].transpose(0, 1)


if __name__ == "__main__":
    main()
