"""What is asked of a server that samples, and what it answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from itertools import count
from typing import Any

import torch
from torch import Tensor

from qwenvl.vllm_server.wire.body import Refusal, pack, require, require_tensor, unpack


@dataclass(frozen=True)
class Draw:
    """How completions are drawn. See ``qwenvl.rollout.engine.SamplingParams``, whose names these are."""

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.max_new_tokens >= 1, f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        require(self.temperature >= 0, f"temperature must be at least 0 (0: greedy), got {self.temperature}")
        object.__setattr__(self, "stop_strings", tuple(self.stop_strings))


@dataclass(frozen=True)
class Medium:
    """An image or a video of a prompt, as it enters the language model.

    Attributes:
        kind: ``image`` or ``video``.
        offset: the prompt's token where its range begins. The range is its placeholders. A Qwen3-VL video has several
            runs of them, with times between: its range goes from its first vision start to its last vision end.
        embedded: bool for each token of the range: True where a row of ``features`` stands.
        features: rows x width, as the merger gives them, those of the deepstack mergers beside them.
        grid: t, h, w in patches.
    """

    kind: str
    offset: int
    embedded: Tensor
    features: Tensor
    grid: tuple[int, int, int]

    def check(self, where: str, length: int) -> None:
        """Raises `Refusal` where the parts do not fit each other, or a prompt of ``length`` tokens."""
        require(self.kind in ("image", "video"), f'{where}.kind: expected "image" or "video", got {self.kind!r}')
        require_tensor(self.embedded, f"{where}.embedded", dims=1, dtype=torch.bool)
        require_tensor(self.features, f"{where}.features", dims=2)
        require(self.features.dtype.is_floating_point, f"{where}.features: expected floats, got {self.features.dtype}")
        end = self.offset + len(self.embedded)
        require(0 <= self.offset < end <= length, f"{where}: tokens {self.offset} to {end} of a prompt of {length}")
        rows, places = len(self.features), int(self.embedded.sum())
        require(rows == places, f"{where}: {rows} rows of features for {places} placeholders")
        require(len(self.grid) == 3 and min(self.grid) > 0, f"{where}.grid: expected t, h, w, got {self.grid}")


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        ids: its tokens, without padding, int64.
        positions: 3 x tokens (time, height, width), int64, by the trainer's rule.
        seed: of its completions.
        media: in the order of their offsets.
    """

    ids: Tensor
    positions: Tensor
    seed: int
    media: tuple[Medium, ...] = ()

    def check(self, where: str) -> None:
        """Raises `Refusal` where the parts do not fit each other."""
        require_tensor(self.ids, f"{where}.ids", dims=1, dtype=torch.long)
        require(len(self.ids) > 0, f"{where}: no tokens")
        require_tensor(self.positions, f"{where}.positions", dims=2, dtype=torch.long)
        shape, expected = tuple(self.positions.shape), (3, len(self.ids))
        require(shape == expected, f"{where}.positions: expected {expected}, got {shape}")
        require(0 <= self.seed < 2**62, f"{where}.seed: expected 0 to 2^62, got {self.seed}")
        end = 0
        for number, medium in enumerate(self.media):
            medium.check(f"{where}.media[{number}]", len(self.ids))
            require(medium.offset >= end, f"{where}.media[{number}]: begins within the one before it")
            end = medium.offset + len(medium.embedded)


@dataclass(frozen=True)
class SampleRequest:
    """Prompts, and how their completions are drawn.

    Attributes:
        version: of the weights that must sample. The server refuses where it has others.
        group_size: completions of each prompt.
        banned_ids: tokens that are never drawn.
        end_ids: tokens that end a completion. They stay in it.
        deadline_s: seconds from its arrival after which nobody waits for the answer, waiting for others included.
    """

    version: int
    group_size: int
    draw: Draw
    banned_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    deadline_s: float
    prompts: tuple[Prompt, ...]

    def pack(self) -> bytes:
        head = {name: getattr(self, name) for name in ("version", "group_size", "banned_ids", "end_ids", "deadline_s")}
        head |= {"draw": asdict(self.draw), "prompts": []}
        media = [medium for prompt in self.prompts for medium in prompt.media]
        for prompt in self.prompts:
            listed = [{"kind": each.kind, "offset": each.offset, "grid": list(each.grid)} for each in prompt.media]
            head["prompts"].append({"length": len(prompt.ids), "seed": prompt.seed, "media": listed})
        tensors = {f"features.{k}": medium.features for k, medium in enumerate(media)}
        tensors |= {f"embedded.{k}": medium.embedded for k, medium in enumerate(media)}
        tensors["ids"] = torch.cat([each.ids for each in self.prompts])
        tensors["positions"] = torch.cat([each.positions for each in self.prompts], dim=1)
        return pack(head, tensors)

    @classmethod
    def unpack(cls, body: bytes) -> SampleRequest:
        """
        Raises:
            Refusal: if the request is malformed: where, what was expected and what is there.
        """
        head, tensors = unpack(body)
        try:
            listed, draw = head.pop("prompts"), Draw(**head.pop("draw"))
            banned, ends = (tuple(map(int, head.pop(name))) for name in ("banned_ids", "end_ids"))
            lengths = [each["length"] for each in listed]
            tokens, positions = tensors["ids"].split(lengths), tensors["positions"].split(lengths, dim=1)
            prompts, numbers = [], count()
            for own, ids, places in zip(listed, tokens, positions, strict=True):
                media = tuple(_medium(each, next(numbers), tensors) for each in own["media"])
                prompts.append(Prompt(ids, places, own["seed"], media))
            request = cls(draw=draw, banned_ids=banned, end_ids=ends, prompts=tuple(prompts), **head)
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise Refusal("request", f"not a request to sample: {type(error).__name__}: {error}") from error
        request.check()
        return request

    def check(self) -> None:
        """Raises `Refusal` where parts do not fit each other."""
        require(len(self.prompts) > 0, "no prompts")
        require(type(self.version) is int, f"version: expected an integer, got {self.version!r}")
        require(self.group_size >= 1, f"group_size must be at least 1, got {self.group_size}")
        require(self.deadline_s > 0, f"deadline_s must be above 0, got {self.deadline_s}")
        for number, prompt in enumerate(self.prompts):
            prompt.check(f"prompts[{number}]")


@dataclass(frozen=True)
class SampleAnswer:
    """N = prompts x group_size completions, row n of prompt n // group_size.

    Attributes:
        version: of the weights that sampled.
        boot: the process that sampled, see `Health`.
        ids: N tensors of tokens, int64, the one that ended a completion included.
        logprobs: N tensors, float32: of softmax(logits / T), over all tokens, before bans, penalty and truncation. T is
            the temperature, and 1 when greedy.
        finish_reasons: ``stop`` or ``length``.
        seconds: that sampling took.
        prompt_tokens, cached_tokens: of all prompts, and how many of these were not computed again.
    """

    version: int
    boot: str
    ids: tuple[Tensor, ...]
    logprobs: tuple[Tensor, ...]
    finish_reasons: tuple[str, ...]
    seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def pack(self) -> bytes:
        tensors = {"ids": torch.cat(self.ids), "logprobs": torch.cat(self.logprobs)}
        head = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in tensors}
        return pack(head | {"lengths": [len(each) for each in self.ids]}, tensors)

    @classmethod
    def unpack(cls, body: bytes) -> SampleAnswer:
        head, tensors = unpack(body)
        try:
            lengths = head.pop("lengths")
            ids, logprobs = (tensors[name].split(lengths) for name in ("ids", "logprobs"))
            return cls(ids=ids, logprobs=logprobs, finish_reasons=tuple(head.pop("finish_reasons")), **head)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise Refusal("request", f"not an answer with completions: {type(error).__name__}: {error}") from error


def _medium(listed: dict[str, Any], number: int, tensors: dict[str, Tensor]) -> Medium:
    grid = tuple(int(each) for each in listed["grid"])
    parts = tensors[f"embedded.{number}"], tensors[f"features.{number}"]
    return Medium(str(listed["kind"]), int(listed["offset"]), *parts, grid)  # type: ignore[arg-type]
