"""The options of sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from qwenvl.option import Options, no_effect, not_with, option, set_among
from qwenvl.rewards.options import LONGEST
from qwenvl.types import SamplingParams, Speculation

LIVE_COMPLETIONS_EVERY = 20


@dataclass
class FilterArguments(Options):
    """How dynamic sampling replaces groups."""

    max_rounds: int = option(
        3,
        "Most rounds of replacing in an optimizer step, at least 1. A round samples as many groups as are still to be "
        "replaced, on all processes at once.",
        least=1,
    )


@dataclass
class GenerationOptions(Options):
    """How completions are drawn, and when they end."""

    generation_temperature: float = option(
        0.7,
        "Sampling temperature, above 0. Log-probs are taken at the same temperature. Lower: groups more alike.",
        above=0,
    )
    generation_top_p: float = option(
        0.9,
        "Sample among the likeliest tokens that hold this much probability, above 0 to 1; 1 samples among all. "
        "Log-probs stay those of sampling among all; so they do with top-k, min-p and the repetition penalty.",
        above=0,
        most=1,
    )
    generation_top_k: int = option(
        0, "Sample among this many of the likeliest tokens, at least 2; 0 samples among all.", least=0
    )
    generation_min_p: float = option(
        0.0,
        "Sample among tokens that have at least this share of the likeliest token's probability, 0 to below 1; 0 "
        "samples among all.",
        least=0,
        below=1,
    )
    generation_repetition_penalty: float = option(
        1.0,
        "Divide logits of tokens that stand in the prompt or the completion by this (multiply negative ones), above 0, "
        "in greedy evaluation too. 1: none. Above: less repetition, and fewer words of the question in the answer.",
        above=0,
    )
    stop_strings: list[str] | None = option(
        None,
        "Texts that end a completion, such as </answer>. They stay in its text, and their tokens are trained like all "
        "others. It saves what is written after them; a policy that they end is not taught to end by itself.",
        unset="only the model's end tokens",
    )
    generation_max_length: int = option(
        LONGEST,
        "Longest completion in new tokens, at least 1; what is longer is cut.",
        least=1,
    )

    def sampling_params(self, entropies: bool = False) -> SamplingParams:
        """The settings of training."""
        return SamplingParams(
            max_new_tokens=self.generation_max_length,
            temperature=self.generation_temperature,
            top_k=self.generation_top_k,
            top_p=self.generation_top_p,
            min_p=self.generation_min_p,
            repetition_penalty=self.generation_repetition_penalty,
            stop_strings=tuple(self.stop_strings or ()),
            entropies=entropies,
        )

    def problems(self) -> Iterator[str]:
        if self.generation_top_k == 1:
            yield "--generation_top_k 1 makes all completions of a group the same: give at least 2, or 0 for all tokens"
        if not all(isinstance(text, str) and text for text in self.stop_strings or ()):
            yield f"--stop_strings must be texts of at least one character, got {self.stop_strings}"


DRAWING = ("generation_temperature", "generation_top_p", "generation_top_k", "generation_min_p")
"""The options that have no effect on a greedy completion."""


@dataclass
class EngineOptions(Options):
    """The engine that samples, and its servers."""

    rollout_engine: Literal["local", "vllm_server", "vllm_colocate"] = option(
        "local",
        "Engine that samples completions. local: the policy itself. vllm_server: vLLM in processes that you start with "
        "scripts/serve_vllm.sh, on other GPUs or machines. vllm_colocate: the same, started by each process of the run "
        "on its own GPU, asleep while it trains. See docs/scaling.md.",
    )
    vllm_server: list[str] | None = option(
        None,
        "Addresses of the servers of --rollout_engine vllm_server, each HOST:PORT. Prompts are dealt to all of them. "
        "Their token is that of $QWENVL_VLLM_TOKEN, or of the cache folder. Needs --rollout_engine vllm_server.",
    )
    vllm_deadline: float = option(
        600.0,
        "Seconds that a server may take for the completions of a step, or for its weights, 1 to 86400 (a day). Later "
        "it counts as lost, and the others are asked. Needs --rollout_engine vllm_server or vllm_colocate.",
        least=1,
        most=86400,
    )
    vllm_patience: float = option(
        300.0,
        "Seconds to wait, where no server is there, until one has come back, at least 0. A new one is given all "
        "weights and goes on. Otherwise the run saves a checkpoint and ends with the reason. Needs --rollout_engine "
        "vllm_server or vllm_colocate.",
        least=0,
    )
    vllm_gpu_memory: float = option(
        0.4,
        "Share of the GPU's memory that vLLM takes, above 0 and below 1. More: more completions at a time. It is "
        "given back while the policy trains. Needs --rollout_engine vllm_colocate.",
        above=0,
        below=1,
    )
    vllm_speculative: str | None = option(
        None,
        "Have vLLM draft, as ngram:TOKENS: what followed the newest tokens of a completion before, in it or in its "
        "prompt, is a guess at its next 1 to 128 tokens, and one forward verifies all of them. The distribution of "
        "completions is the same, the draws of a seed are others. ngram:4: for answers that repeat their question. "
        "Needs --rollout_engine vllm_colocate: a server that you start has its own option, --speculative.",
        unset="a forward for each token",
    )

    @property
    def engine_has_own_weights(self) -> bool:
        """Whether another process samples, with weights that are not quite the policy's.

        This is the one place where settings say so: options that correct for it are refused where it is False. The
        engine itself is then an ``EngineWithWeights``, which stages ask for its methods.
        """
        return self.rollout_engine != "local"

    def problems(self) -> Iterator[str]:
        if self.rollout_engine != "vllm_server" and self.vllm_server is not None:
            yield no_effect("--vllm_server", without="--rollout_engine vllm_server")
        if self.rollout_engine == "local":
            for name in set_among(self, "vllm_deadline", "vllm_patience"):
                yield no_effect(f"--{name}", without="--rollout_engine vllm_server or vllm_colocate")
        if self.rollout_engine != "vllm_colocate" and set_among(self, "vllm_gpu_memory"):
            yield no_effect("--vllm_gpu_memory", without="--rollout_engine vllm_colocate")
        if self.vllm_speculative is not None:
            if self.rollout_engine == "vllm_server":
                reason = "a server that you start drafts if it is started with --speculative"
                yield no_effect("--vllm_speculative", without="--rollout_engine vllm_colocate", reason=reason)
            elif self.rollout_engine == "local":
                reason = "drafts of the local engine are --draft_tokens"
                yield no_effect("--vllm_speculative", without="--rollout_engine vllm_colocate", reason=reason)
            try:
                Speculation.parse(self.vllm_speculative)
            except ValueError as error:
                yield f"--vllm_speculative: {error}"
        addresses = self.vllm_server or []
        if self.rollout_engine == "vllm_server" and not addresses:
            yield "--rollout_engine vllm_server needs --vllm_server HOST:PORT: scripts/serve_vllm.sh MODEL starts one"
        for address in addresses:
            try:
                host_and_port(str(address))
            except ValueError as error:
                yield f"--vllm_server: {error}"


@dataclass
class DecodingSpeedOptions(Options):
    """Memory and time of the local engine."""

    rollout_token_budget: int = option(
        65536,
        "Prompts of an optimizer step are sampled together while their tokens, completions in full length included, "
        "stay below this, at least 1; a prompt counts once, padded to the longest, with --shared_prefix off once per "
        "completion; what linear attention keeps of a completion counts as the tokens that take as much memory (1,584 "
        "for Qwen3.5-9B). Less: less memory, more time. Of vLLM servers a step of training asks all of its "
        "prompts at once.",
        least=1,
    )
    compile_decoding: bool = option(
        False,
        "Compile the layers of the sampling step from token to token (torch.compile). The first batch of one prompt "
        "and the first of several wait for it, up to 20 seconds: it pays in long runs of long completions. Needs a "
        "C++ compiler, on a GPU Triton. Needs --rollout_engine local. Needs --ds3_gather_for_generation. Not with "
        "--shared_prefix off.",
    )
    draft_tokens: int = option(
        0,
        "Most tokens of a draft: a guess at what follows, from the prompt, from the completion itself and from those "
        "of earlier steps, at least 0. One forward verifies the drafts of all completions, so that there are fewer "
        "forwards than tokens. The distribution of completions is the same, the draws of a seed are others. 0: a "
        "forward for each token. 4 to 8: for answers that repeat their question or each other. Needs --rollout_engine "
        "local. Not with --compile_decoding. Needs --ds3_gather_for_generation. Not with --shared_prefix off.",
        least=0,
    )

    def problems(self) -> Iterator[str]:
        if self.draft_tokens and self.compile_decoding:
            reason = "the compiled step has one token of each completion"
            yield not_with("--draft_tokens", "--compile_decoding", reason)


@dataclass
class GroupOptions(Options):
    """The completions of a prompt."""

    grpo_sample_size: int = option(
        4,
        "Completions sampled per prompt in training (the group), at least 2. More: steadier advantages, more time.",
        least=2,
        why="the advantage of a completion is relative to its group, and in a group of one it is always 0",
    )


@dataclass
class SamplingOptions(Options):
    """Sampling in training and its evaluation."""

    eval_sample_size: int = option(
        1, "Completions per prompt in evaluation, at least 1. 1: the greedy one. More: sampled as in training.", least=1
    )
    filter_groups: bool | str = option(
        False,
        "Replace groups whose rewards are all equal, which teach no difference, by groups of other prompts, drawn at "
        "random, until the step is full (dynamic sampling, arXiv:2503.14476). Costs sampling; prompts are read by the "
        "training process itself. A reward by name, or total, with arguments or without, as accuracy(max_rounds=5): "
        "its values are compared; for a group to which it does not apply, the totals are. The flag alone: total.",
        rows={None: FilterArguments},
    )
    ds3_gather_for_generation: bool = option(
        True,
        "With DeepSpeed ZeRO-3 or FSDP, gather the whole model in each process to sample. False: the weights of one "
        "layer at a time, so that models larger than a GPU can be sampled from. The completions are the same. False "
        "takes less memory and more time: each layer is gathered for each token. Needs --rollout_engine local.",
    )
    check_parity: Literal["every", "first", "off"] = option(
        "first",
        "Compare the sampler's log-probs with the trainer's for the same tokens, on every step, the first (of a run, "
        "and of each start of a server) or none, and stop where they differ: it catches wrong positions, frames and "
        "templates. Left out with --lora_dropout above 0, with which `every` is refused.",
    )
    async_rollouts: int = option(
        0,
        "Steps whose completions the servers sample while an earlier one trains, at least 0; 0 samples each step when "
        "it is its turn. Completions are then up to this many steps, times --num_iterations, older than the policy, "
        "which --importance_correction corrects for. More: less waiting where sampling times vary, older completions. "
        "Needs --rollout_engine vllm_server.",
        least=0,
    )
    log_completions_every: int | None = option(
        None,
        "Optimizer steps between two prompts that are shown with all their completions, rewards and advantages, at "
        "least 0. The first step is shown too, and of each step the group whose rewards differ most. 0: none. Not "
        "with --display none. Not with --disable_tqdm.",
        unset=f"{LIVE_COMPLETIONS_EVERY} with the display rich, else 0",
        least=0,
    )


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of ``host:port``, with or without ``http://`` before it.

    Raises:
        ValueError: it is none.

    Example:
        >>> host_and_port("127.0.0.1:8200")
        ('127.0.0.1', 8200)
    """
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        host = parts.hostname
        port = parts.port
    except ValueError:
        host = port = None
    has_more = host and (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    if not host or not port or parts.scheme not in ("", "http") or has_more:
        raise ValueError(f"{address!r} is no address of a server: expected HOST:PORT, such as 127.0.0.1:8200")
    return host, port
