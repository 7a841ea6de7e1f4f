r"""Memory and time of a step on one long video, by phase, against what they are computed to be: docs/scaling.md.

    python scripts/bench/long_video.py    # 4k and 16k tokens: three minutes of CPU
    python scripts/bench/long_video.py --cases 4k 16k 64k --out results.jsonl
    python scripts/bench/long_video.py --cases 256k --family qwen3_vl --layers 2 --heads 1 --head_dim 32 \
        --pixels 135000 --beta 0

Each case is a process of its own: it makes an mp4 of 640 x 360 pixels, a frame for each second, and a tiny checkpoint
with random weights, and has the trainer make one optimizer step on it, gradient checkpointing on. No completion ends
early. Peaks are those of the whole process, by the kernel (VmHWM, Linux). What a phase takes more from one case to the
next is compared with the arithmetic of ``qwenvl plan``: what Python takes anyhow is not computed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

PHASES = ("decode", "vision", "prefill", "decoding", "policy", "reference", "backward")
ENVIRONMENT = {
    **os.environ,
    "HF_HUB_OFFLINE": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**18),
    "OMP_WAIT_POLICY": "passive",  # threads that wait take no CPU seconds
}
"""glibc keeps freed tensors below 32 MB for the next ones, if it isn't told otherwise: at 16k tokens a process then
holds twice what is alive."""


@dataclass(frozen=True)
class Sizes:
    """What is trained on what.

    Attributes:
        tokens: about how many the prompt has.
        pixels: most of a frame.
        group, length: completions, and tokens of each.
        heads, head_dim: of attention. None: as the family's tiny checkpoint has them.
        beta: 0 without a reference.
        threads: of the process.
    """

    tokens: int
    family: str = "qwen2_5_vl"
    hidden: int = 256
    layers: int = 8
    vision_hidden: int = 128
    vision_layers: int = 4
    pixels: int = 113_000
    group: int = 8
    length: int = 64
    heads: int | None = None
    head_dim: int | None = None
    beta: float = 0.04
    threads: int = 2


@dataclass(frozen=True)
class Measured:
    """A step as it was.

    Attributes:
        tokens, patches, frames: of the prompt.
        base: bytes of the process before its first step.
        peak: bytes of the process at its fullest moment.
        peaks: the same in each phase.
        computed: bytes by phase, as they are planned.
        seconds: of CPU, of all threads, by phase. The process that decodes is not among them.
    """

    tokens: int
    patches: int
    frames: int
    base: int
    peak: int
    peaks: dict[str, int]
    computed: dict[str, int]
    seconds: dict[str, float]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["4k", "16k"], help="prompt tokens, the fewest first [4k 16k]")
    parser.add_argument("--family", default=Sizes.family, help="of the tiny checkpoint [%(default)s]")
    parser.add_argument("--layers", type=int, default=Sizes.layers, help="of the language model [%(default)s]")
    parser.add_argument("--heads", type=int, help="of its attention")
    parser.add_argument("--head_dim", type=int, help="width of a head, where the family's is free")
    parser.add_argument("--pixels", type=int, default=Sizes.pixels, help="most of a frame [%(default)s]")
    parser.add_argument("--beta", type=float, default=Sizes.beta, help="0: no reference [%(default)s]")
    parser.add_argument("--threads", type=int, default=Sizes.threads, help="[%(default)s]")
    parser.add_argument("--out", type=Path, help="a file that gets a line of JSON for each case")
    options = vars(parser.parse_args(argv))
    cases, out = options.pop("cases"), options.pop("out")
    before: Measured | None = None
    for case in cases:
        row = run(Sizes(tokens_of(case), **options))
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps({"case": case, **options, **asdict(row)}) + "\n")
        print("\n".join(lines_of(row)), flush=True)
        if before is not None:
            print("\n".join(slope_lines(before, row)), flush=True)
        before = row


def run(sizes: Sizes) -> Measured:
    """The step in a process of its own."""
    script, asked = Path(__file__).with_name("long_step.py"), json.dumps(asdict(sizes))
    command = [sys.executable, str(script), asked]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT).stdout
    return Measured(**json.loads(printed.splitlines()[-1]))


def tokens_of(text: str) -> int:
    """Tokens as they are written on the command line.

    Example:
        >>> tokens_of("16k"), tokens_of("500")
        (16000, 500)
    """
    return int(float(text.removesuffix("k")) * (1000 if text.endswith("k") else 1))


def lines_of(row: Measured) -> Iterator[str]:
    """A case as lines of text."""
    peak = f"{row.peak / 1e9:.2f} GB at most, {row.base / 1e9:.2f} before the step"
    yield f"\n{row.tokens:,} tokens, {row.frames:,} frames, {row.patches:,} patches: {peak}"
    yield f"{'':11}{'GB':>7}{'CPU s':>9}"
    for name in PHASES:
        if name in row.peaks:
            yield f"{name:11}{row.peaks[name] / 1e9:7.2f}{row.seconds[name]:9.1f}"


def slope_lines(small: Measured, large: Measured) -> Iterator[str]:
    """What a phase takes more for 1,000 tokens, measured and computed, from one case to the next."""
    thousands = (large.tokens - small.tokens) / 1000
    yield f"MB for 1,000 tokens more, from {small.tokens:,} to {large.tokens:,}: measured, computed, ratio; CPU ms"

    def slope(of_small: Mapping[str, float], of_large: Mapping[str, float], name: str) -> float:
        return (of_large[name] - of_small[name]) / thousands

    for name in PHASES:
        if name in small.peaks and name in large.peaks:
            was, planned = slope(small.peaks, large.peaks, name), slope(small.computed, large.computed, name)
            seconds = slope(small.seconds, large.seconds, name)
            yield f"{name:11}{was / 1e6:8.1f}{planned / 1e6:8.1f}{was / planned:7.2f}{seconds * 1000:9.0f}"


if __name__ == "__main__":
    main()
