"""From logits to the next token: the processors of transformers and a race of all tokens, against what engines do.

    python scripts/bench/next_token.py
    python scripts/bench/next_token.py --vocabulary 32000 --rows 64 --threads 2

Both draw from the same logits in turn. *Before* is the plain way of ``qwenvl/rollout/next_token.py``, which a small
vocabulary and a GPU take, and *after* the one of a large vocabulary on a CPU. *Flat* logits are about those of an
untrained model, for which top-p keeps most of the vocabulary, *peaked* ones about those of a trained one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.next_token import NextToken

SUPPRESSED = [5, 6, 7, 8]  # as many as a checkpoint has tokens of pictures
SEEN = 1000  # tokens of prompt and completion, which a repetition penalty counts
LOGITS = {"flat": 0.3, "peaked": 4.0}
"""Standard deviations."""
SETTINGS: dict[str, dict[str, Any]] = {
    "no truncation": {},
    "top-p 0.9": {"top_p": 0.9},
    "top-p 0.1": {"top_p": 0.1},
    "top-k 20": {"top_k": 20},
    "top-k 2,000": {"top_k": 2000},
    "min-p 0.05": {"min_p": 0.05},
    "repetition penalty": {"repetition_penalty": 1.1},
    "with entropies": {"entropies": True},
    "greedy": {"temperature": 0.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=151_936, help="[%(default)s]")
    parser.add_argument("--rows", type=int, default=8, help="completions [%(default)s]")
    parser.add_argument("--repeats", type=int, default=9, help="draws of each, whose median is printed [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.rows} rows of {options.vocabulary:,}, {options.threads} threads, CPU milliseconds a token")
    print("| | " + " | ".join(f"{kind}, before | after" for kind in LOGITS) + " |")
    print("|---" * (1 + 2 * len(LOGITS)) + "|")
    generator = torch.Generator().manual_seed(0)
    seen = torch.randint(0, options.vocabulary, (options.rows, SEEN), generator=generator)
    made = [scale * torch.randn(options.rows, options.vocabulary, generator=generator) for scale in LOGITS.values()]
    for name, settings in SETTINGS.items():
        drawing = NextToken(SamplingParams(1, **{"temperature": 0.7} | settings), SUPPRESSED, "cpu")
        cells = []
        for logits in made:
            before, after = in_turn([drawing.draw_plain, drawing.draw_large], seen, logits, options.repeats)
            cells += [f"{before:.1f}", f"{after:.1f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def in_turn(ways: list[Callable], seen: torch.Tensor, logits: torch.Tensor, repeats: int) -> list[float]:
    """Median CPU milliseconds of each, after a draw that is not counted."""
    spent: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats + 1):
        for way, times in zip(ways, spent, strict=True):
            start = time.process_time()
            way(seen, logits)
            times.append(1e3 * (time.process_time() - start))
    return [statistics.median(times[1:]) for times in spent]


if __name__ == "__main__":
    main()
