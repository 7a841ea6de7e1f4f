"""One GRPO step, each prompt computed once, against the plain path: CPU seconds and memory.

    python scripts/bench/step.py                      # about 40 minutes
    python scripts/bench/step.py --cases 1000,8,64    # prompt tokens, completions, completion tokens
    python scripts/bench/step.py --looks 400          # continuing behind a look against computing all again

Both paths run in turn in one process, so that a busy machine slows both. Medians of CPU seconds are compared. Peak
memory is taken in a process of its own for each path and phase, over what the process held before (Linux). By the
shared path the tower runs once for both phases and is counted in the first, by the plain path it runs in every forward.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import GenerationConfig

from qwenvl.demo.tiny import FAMILIES, make_model, make_processor
from qwenvl.model import logprobs
from qwenvl.model.families import family_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import apply_tuning, unwrap
from qwenvl.model.options import TuneOptions
from qwenvl.model.positions import first_positions, position_rule, prompt_positions
from qwenvl.model.reference import Reference
from qwenvl.model.sharing import shared_prefix
from qwenvl.model.vision_tower import accept_features, encode_vision
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.shared_sampling import SharedSampler
from qwenvl.rollout.turns import GrowingCompletion, behind_prompts

LOGPROB_SETTINGS = {"temperature": 1.0, "logit_chunk_tokens": 512}
FRAME = (10, 20)  # merged patches: 200 tokens per pair of frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["1000,8,64", "2000,8,64", "4000,16,64"], metavar="P,G,C")
    parser.add_argument("--family", default="qwen2_5_vl", choices=FAMILIES)
    parser.add_argument(
        "--vocabulary", type=int, default=151_936, help="rows of embedding and head, random ones [%(default)s]"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each path, in turn; medians are printed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile_decoding", action="store_true", help="also sample by the compiled step")
    parser.add_argument("--looks", type=int, help="cost of a look of so many tokens for each completion, alone")
    parser.add_argument("--memory_of", nargs=2, metavar=("PATH", "PHASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        step = Step.of(Case.parse(options.cases[0]), options.family, options.vocabulary)
        print(peak_memory(step, *options.memory_of))
        return
    print(f"{options.threads} threads, float32, vocabulary {options.vocabulary:,}; seconds are CPU (wall)")
    for text in options.cases:
        (report_looks if options.looks else report_case)(Case.parse(text), options)


def report_case(case: Case, options: argparse.Namespace) -> None:
    """Prints the rows of one case."""
    step = Step.of(case, options.family, options.vocabulary)
    print(f"\n{case}: {step.prompt_tokens} prompt tokens, {step.patches} patches")
    ways = ["plain", "shared", *(["compiled"] if options.compile_decoding else [])]
    for phase in ("train", "sample"):
        runs = {way: getattr(step, f"{way}_{phase}") for way in (ways if phase == "sample" else ways[:2])}
        if "compiled" in runs:
            start = time.perf_counter()
            runs["compiled"]()
            print(f"  the first compiled call takes {time.perf_counter() - start:.0f} s")
        spent = in_turn(runs, options.repeats)
        memory = {way: child_memory(case, options, way, phase) for way in ways[:2]}
        cells = [f"{way} {cpu:.2f} ({clock:.2f})" for way, (cpu, clock) in spent.items()]
        cells += [f"{spent['plain'][0] / spent[way][0]:.1f} x" for way in ways[1:] if way in spent]
        cells.append(f"memory {memory['plain']:.0f} -> {memory['shared']:.0f} MiB, ")
        print(f"  {phase:7}{'  '.join(cells)}{memory['shared'] / memory['plain']:.2f} x")


def report_looks(case: Case, options: argparse.Namespace) -> None:
    """Prints what it costs to continue behind a look, and to compute prompts and completions again instead."""
    step = Step.of(case, options.family, options.vocabulary)
    shown = encode_vision(step.model, video_prompt(step.model, options.looks))
    ways = {"turn": None, "continued": False, "again": True}
    spent = in_turn({name: partial(step.look, shown, again) for name, again in ways.items()}, options.repeats)
    turn, continued, again = (spent[name][0] for name in ways)
    print(f"\n{case}: looks of {shown.input_ids.shape[1]} tokens behind {step.prompt_tokens} prompt tokens")
    print(f"  continued {continued - turn:.2f}  again {again - turn:.2f}  {(again - turn) / (continued - turn):.1f} x")


def in_turn(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median CPU seconds and seconds of ``repeats`` runs of each, one after the other."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            run()
            times[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in times.items()}


def child_memory(case: Case, options: argparse.Namespace, path: str, phase: str) -> float:
    """Peak MiB of one phase, measured in a new process."""
    command = [sys.executable, __file__, "--cases", str(case), "--family", options.family]
    command += ["--vocabulary", str(options.vocabulary), "--threads", str(options.threads), "--memory_of", path, phase]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(printed.splitlines()[-1])  # libraries print before it


def peak_memory(step: Step, path: str, phase: str) -> float:
    """MiB that the process held at most during the phase, over what it held before."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _memory_line("VmRSS")
    getattr(step, f"{path}_{phase}")()
    return (_memory_line("VmHWM") - before) / 1024


def _memory_line(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0])


@dataclass(frozen=True)
class Case:
    """Sizes of a step: about how many prompt tokens, completions, tokens of each."""

    prompt: int
    group: int
    length: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """From ``P,G,C``."""
        return cls(*(int(part) for part in text.split(",")))

    def __str__(self) -> str:
        return f"{self.prompt},{self.group},{self.length}"


class Step:
    """One prompt with a video, and what a GRPO step does with it by either path. Every token is sampled (no end token).

    The tower is frozen. The reference is a copy of the rest, or with LoRA the model with its adapter off. By the shared
    path the tower runs once for sampling and training, and its time is counted in training.
    """

    def __init__(self, model: torch.nn.Module, prompts: PromptInputs, case: Case):
        self.model, self.prompts, self.case = model, prompts, case
        self.reference = Reference(model)
        with self.reference.model() as frozen:
            accept_features(frozen)
        self.encoded = self.tower()
        generator, device = torch.Generator().manual_seed(1), prompts.input_ids.device
        self.completion_ids = torch.randint(0, 250, (case.group, case.length), generator=generator).to(device)
        self.mask = torch.ones_like(self.completion_ids, dtype=torch.bool)
        self.weights = torch.randn(self.mask.shape, generator=generator).to(device)

    @classmethod
    def of(cls, case: Case, family: str, vocabulary: int) -> Step:
        """For the bench model: text 256 wide with 8 layers, vision 128 wide with 4 layers, random weights, float32.

        Args:
            vocabulary: rows of embedding and head.
        """
        processor = make_processor(family)
        sizes = {"hidden_size": 256, "num_layers": 8, "vision_hidden_size": 128, "vision_depth": 4}
        model = make_model(family, processor, vocabulary=vocabulary, **sizes)
        apply_tuning(model, TuneOptions())
        return cls(model, video_prompt(model, case.prompt), case)

    @property
    def prompt_tokens(self) -> int:
        """The tokens of the prompt as it is."""
        return self.prompts.input_ids.shape[1]

    @property
    def patches(self) -> int:
        """Patches of its video."""
        return int(self.prompts.video_grid_thw.prod())

    def tower(self) -> PromptInputs:
        """The prompt with the tower's features in the place of its pixels."""
        return encode_vision(self.model, self.prompts)

    def plain_train(self) -> None:
        """Reference forward, policy forward and backward on repeated prompts, pixels and all."""
        self._train(logprobs.completion_logprobs, self.prompts)

    def shared_train(self) -> None:
        """The same numbers: tower once, prompt once in either pass."""
        self._train(shared_prefix.completion_logprobs, self.tower())

    def plain_sample(self) -> None:
        """``generate`` on repeated prompts, pixels and all."""
        rows = self.prompts.repeat(self.case.group)
        positions = torch.cat([rows.attention_mask.cumsum(1)[None] - 1, rows.position_ids])
        bare = unwrap(self.model)
        bare.generation_config = GenerationConfig(
            do_sample=True, top_k=0, max_new_tokens=self.case.length, pad_token_id=0
        )
        bare.generate(
            input_ids=rows.input_ids, attention_mask=rows.attention_mask, position_ids=positions, **rows.vision()
        )

    def shared_sample(self) -> None:
        """Prefill once, keys and values of the prompt once. The tower has run before."""
        self.sample(self.case.length)

    def compiled_sample(self) -> None:
        """The same with ``--compile_decoding``. Its first call waits for the compiler."""
        self.sample(self.case.length, compiled=True)

    def sample(self, length: int, compiled: bool = False, cuda_graph: bool | None = None) -> None:
        """The shared sampling, ``length`` tokens for each completion. On a GPU it is a CUDA graph by default."""
        cuda_graph = self.completion_ids.is_cuda if cuda_graph is None else cuda_graph
        SharedSampler(
            unwrap(self.model),
            self.encoded,
            self.case.group,
            SamplingParams(length),
            suppress=[],
            end_ids=[],
            pad_id=0,
            compiled=compiled,
            cuda_graph=cuda_graph,
        ).first()

    @torch.no_grad()
    def look(self, shown: PromptInputs, again: bool | None) -> None:
        """A turn of each completion, a look, and the first token behind it.

        Args:
            shown: by each look.
            again: compute all tokens before the look again, the prompt for each completion. None: no look.
        """
        model, size = unwrap(self.model), self.case.group
        pads = [model.config.image_token_id, model.config.video_token_id]  # sampled, they would be taken for pictures
        settings = {"suppress": pads, "end_ids": [], "pad_id": 0}
        end = lambda ids: torch.full(ids.shape[:1], ids.shape[1] == self.case.length)
        params = SamplingParams(self.case.length)
        turn = SharedSampler(model, self.encoded, size, params, stopping=end, resumable=True, **settings)
        ids, _ = turn.first()
        if again is None:
            return
        completions = [GrowingCompletion(start) for start in first_positions(self.encoded.position_ids, size).tolist()]
        for completion, row in zip(completions, ids, strict=True):
            completion.add(PromptInputs.of_text(row[None]))
            completion.add(shown)
        if again:
            whole = behind_prompts(self.encoded, size, range(size), completions)
            SharedSampler(model, whole, 1, SamplingParams(1), **settings).first()
        else:
            turn.resume(range(size), PromptInputs.join([each.unseen for each in completions]), 1)

    def _train(self, completion_logprobs, prompts: PromptInputs) -> None:
        self.update(completion_logprobs, prompts, self.reference_logprobs(completion_logprobs, prompts))

    def reference_logprobs(self, completion_logprobs, prompts: PromptInputs) -> torch.Tensor:
        """The reference pass by ``completion_logprobs``, one of the two paths."""
        with self.reference.model() as frozen:
            return completion_logprobs(frozen, prompts, self.completion_ids, self.mask, **LOGPROB_SETTINGS)

    def update(self, completion_logprobs, prompts: PromptInputs, of_reference: torch.Tensor) -> None:
        """The policy's forward and backward. The gradient is dropped."""
        of_policy = completion_logprobs(self.model, prompts, self.completion_ids, self.mask, **LOGPROB_SETTINGS)
        difference = of_reference - of_policy
        (self.weights * of_policy + difference.exp() - difference).mean().backward()
        self.model.zero_grad(set_to_none=True)


def video_prompt(model: torch.nn.Module, tokens: int) -> PromptInputs:
    """A question about a video of random pixels, about ``tokens`` tokens in all."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    frame = FRAME[0] * FRAME[1]
    grid = [max(1, round(tokens / frame)), 2 * FRAME[0], 2 * FRAME[1]]
    pictures, pads = (grid[0], frame) if family_of(config).time == "timestamp" else (1, frame * grid[0])
    video = [config.vision_start_token_id, *[config.video_token_id] * pads, config.vision_end_token_id] * pictures
    ids = torch.tensor([[*range(20, 30), *video, *range(30, 40)]])
    mask, grids = torch.ones_like(ids), torch.tensor([grid])
    vision = config.vision_config
    values = 3 * vision.temporal_patch_size * vision.patch_size**2
    return PromptInputs(
        input_ids=ids,
        attention_mask=mask,
        position_ids=prompt_positions(position_rule(config), ids, mask, None, grids, torch.ones(1)),
        pixel_values=None,
        image_grid_thw=None,
        pixel_values_videos=torch.randn(int(grids.prod()), values, generator=generator),
        video_grid_thw=grids,
        images_per_prompt=[0],
        videos_per_prompt=[1],
    )


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
