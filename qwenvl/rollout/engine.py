"""The interface of rollout engines, the settings and progress of sampling, and operations on completions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, chain, compress, pairwise
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from qwenvl.model.inputs import PromptInputs
from qwenvl.tools.toolbox import Conversations
from qwenvl.types import RolloutBatch, SamplingParams

Some = TypeVar("Some")


@dataclass
class Drawing:
    """Progress of the current sampling: an engine writes it token by token, and a display reads it in another thread.

    Attributes:
        tokens, most: of the completions that are sampled now, the longest so far, and how long they may get.
        of: which prompts they are of, where others follow.
        drawn: tokens per completion of all samplings so far. It only grows.
        watch: called after each token with the numbers of the unfinished completions and their newest tokens. It
            returns which of them end there. ``SharedPrefixEngine`` alone calls it, without tools.
        first: the first prompt that is sampled now.
    """

    tokens: int = 0
    most: int = 0
    of: str = ""
    drawn: int = 0
    watch: Callable[[list[int], list[int]], list[bool]] | None = None
    first: int = 0

    def begin(self, rows: Sequence[int], prompts: int, most: int) -> None:
        """The prompts ``rows`` of ``prompts`` are sampled now, up to ``most`` tokens."""
        self.tokens = 0
        self.most = most
        self.first = rows[0]
        which = f"prompts {rows[0] + 1} to {rows[-1] + 1}" if len(rows) > 1 else f"prompt {rows[0] + 1}"
        self.of = f", {which} of {prompts}" if len(rows) < prompts else ""

    def token(self) -> None:
        """Each unfinished completion has one token more."""
        self.tokens += 1
        self.drawn += 1

    def watched(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """R bool, True for those of the completions ``rows`` that ``watch`` ends at these tokens."""
        ended = [False] * len(rows)
        if self.watch is not None:
            ended = self.watch(rows.tolist(), tokens.tolist())
        return torch.tensor(ended, dtype=torch.bool, device=rows.device)

    def end(self) -> None:
        """Nothing is sampled."""
        self.tokens = 0
        self.most = 0

    def words(self) -> str:
        """The progress in words, for people. Empty while nothing is sampled.

        Example:
            >>> Drawing(tokens=12, most=256, of=", prompts 1 to 2 of 8").words()
            'token 12 of at most 256, prompts 1 to 2 of 8'
        """
        if not self.most:
            return ""
        return f"token {self.tokens} of at most {self.most:,}{self.of}"


@dataclass(frozen=True)
class SamplingRequest:
    """The completions that an engine is asked for.

    Attributes:
        prompts: P of each micro-batch. Where the tower runs once per prompt they have features in the place of pixels.
        group_size: G, completions of each prompt.
        params: how they are drawn.
        seed: of their random numbers.
        conversations: with the N completions of all micro-batches, which answer calls. None: there are no tools.
    """

    prompts: Sequence[PromptInputs]
    group_size: int
    params: SamplingParams
    seed: int
    conversations: Conversations | None = None

    @property
    def sizes(self) -> list[int]:
        """Completions of each micro-batch."""
        return [len(each) * self.group_size for each in self.prompts]

    def joined(self) -> PromptInputs | None:
        """The prompts of all micro-batches. None: there are none, as all samples were bad."""
        with_prompts = [each for each in self.prompts if len(each)]
        return PromptInputs.join(with_prompts) if with_prompts else None


class RolloutEngine(Protocol):
    """Samples completions. The same seed, prompts and weights give the same ones, with drafts the same history too."""

    def sample(self, model: nn.Module, request: SamplingRequest) -> list[RolloutBatch]:
        """N = P * G completions of each micro-batch, row n for prompt n // G."""
        ...


@runtime_checkable
class EngineWithWeights(RolloutEngine, Protocol):
    """An engine that samples in another process, with a copy of the policy's weights, also while the policy trains."""

    def sync(self, model: nn.Module, version: int | None) -> None:
        """Gives the engine the weights of ``model``. All processes of the run must call this together.

        Args:
            model: with whole weights, see ``whole_weights``.
            version: how many optimizer steps made them. An engine that has this version does nothing. None: a script
                may have changed them since, so they are given in any case.
        """
        ...

    def request(self, model: nn.Module, request: SamplingRequest) -> Callable[[], list[RolloutBatch]]:
        """The first half of ``sample``. What it returns is the second: called once, in another thread, no collectives.

        The weights that sample are those of the last ``sync``. With tools the trainer gives as ``model`` a
        ``tower_alone``, which the thread may run. Otherwise the second half runs no model.
        """
        ...

    def forget(self) -> None:
        """Training begins, and versions count from 0 again: the next ``sync`` gives weights in any case."""
        ...

    def rest(self) -> None:
        """Nothing is sampled until the next ``sync``. An engine on the trainer's own GPU releases its memory."""
        ...


class EngineLostError(RuntimeError):
    """The processes that sample are gone and did not come back, or can't be used."""


class WeightsLostError(EngineLostError):
    """The servers were started again, and lack the weights of a request. It can be made again, with other weights."""


def no_completions() -> RolloutBatch:
    """The completions of a batch without prompts."""
    ids = torch.zeros(0, 1, dtype=torch.long)
    return RolloutBatch(ids, ids.bool(), texts=[], finish_reasons=[], ended_by=[])


def on_device(rollout: RolloutBatch, device: torch.device | str) -> RolloutBatch:
    """The same completions with every tensor on ``device``."""
    moved: dict[str, Any] = {name: tensor.to(device) for name, tensor in _tensors(rollout).items()}
    if rollout.whole is not None:
        of_whole = {name: tensor.to(device) for name, tensor in _tensors(rollout.whole).items()}
        moved["whole"] = replace(rollout.whole, **of_whole)
    return replace(rollout, **moved)


def end_token(ids: Sequence[int], end_ids: Collection[int], tokenizer: Any) -> str:
    """The token that ended a completion, as text. Empty where it was cut, or ended by a stop string."""
    if not ids or ids[-1] not in end_ids:
        return ""
    return tokenizer.convert_ids_to_tokens(ids[-1])


def split_rollouts(rollout: RolloutBatch, sizes: Sequence[int]) -> list[RolloutBatch]:
    """The rows of ``rollout`` cut into consecutive batches of the given sizes."""
    ends = [0, *accumulate(sizes)]
    return [select_rows(rollout, range(start, end)) for start, end in pairwise(ends)]


def select_rows(rollout: RolloutBatch, rows: Sequence[int]) -> RolloutBatch:
    """The completions ``rows``, cut to the width of the longest of them."""
    rows = list(rows)
    width = rollout.width(rows)
    own: dict[str, Any] = {name: tensor[rows, :width] for name, tensor in _tensors(rollout).items()}
    for name in _LISTS:
        values = getattr(rollout, name)
        own[name] = None if values is None else [values[row] for row in rows]
    if rollout.whole is not None:
        own["whole"] = rollout.whole.select(rows)
    return replace(rollout, **own)


def join_rollouts(parts: Sequence[RolloutBatch], pad_id: int = 0) -> RolloutBatch:
    """All completions of ``parts``, in order, right-padded to the longest, in new tensors."""
    width = max(part.completion_ids.shape[1] for part in parts)
    own: dict[str, Any] = {}
    for name in _tensors(parts[0]):  # each N x T, with a T of its own
        fill = pad_id if name == "completion_ids" else 0
        padded = []
        for part in parts:
            rows = getattr(part, name)
            padded.append(nn.functional.pad(rows, (0, width - rows.shape[1]), value=fill))
        own[name] = torch.cat(padded)
    for name in _LISTS:
        lists = [getattr(part, name) for part in parts]
        own[name] = None if lists[0] is None else list(chain.from_iterable(lists))
    boots: frozenset[str] = frozenset()
    for part in parts:
        boots |= part.boots
    own["boots"] = boots
    if parts[0].whole is not None:
        own["whole"] = PromptInputs.join([part.whole for part in parts], left=False)
    return RolloutBatch(**own)


_LISTS = ("texts", "finish_reasons", "ended_by", "turns")
"""The fields of ``RolloutBatch`` with one value for each completion, or None."""


def _tensors(rows: RolloutBatch | PromptInputs) -> dict[str, Tensor]:
    """The fields that hold a tensor, by name. Of completions they are N x T."""
    return {name: value for name, value in vars(rows).items() if isinstance(value, Tensor)}


def within_budget(
    items: Iterable[Some],
    budget: int | None,
    cost: Callable[[Some], int],
    members: Callable[[Some], int] = lambda item: 1,
) -> Iterator[list[Some]]:
    """Consecutive items in groups that cost at most ``budget``. One that exceeds it alone is a group.

    A group is padded: each of its members costs what its dearest one does.

    Args:
        budget: None: no limit.
        cost: what each member of an item costs.
        members: how many members an item has.

    Example:
        >>> list(within_budget([5, 4, 3, 20, 1], 10, cost=lambda item: item))
        [[5, 4], [3], [20], [1]]
    """
    group: list[Some] = []
    dearest = 0
    size = 0  # members of the group
    for item in items:
        price = cost(item)
        more = members(item)
        if group and budget is not None and max(dearest, price) * (size + more) > budget:
            yield group
            group = []
            dearest = 0
            size = 0
        group.append(item)
        dearest = max(dearest, price)
        size += more
    if group:
        yield group


def completion_mask(is_end: Tensor) -> Tensor:
    """N x T bool: True up to and with the first token of each row that ends it, as ``is_end`` (N x T bool) says.

    Example:
        >>> completion_mask(torch.tensor([[False, True, False, True]])).tolist()
        [[True, True, False, False]]
    """
    ends_before = is_end.long().cumsum(1) - is_end.long()
    return ends_before == 0


def real_tokens(completion_ids: Tensor, completion_mask: Tensor) -> list[list[int]]:
    """The tokens of each of N completions (N x T) that the mask has, copied to the host at once."""
    rows = zip(completion_ids.tolist(), completion_mask.tolist(), strict=True)
    return [list(compress(ids, sampled)) for ids, sampled in rows]


@contextmanager
def lost_together(engine: RolloutEngine) -> Iterator[None]:
    """All processes raise at the end of the block if one of them loses the engine inside it. Collective.

    A process that continued alone would wait for the others for ever.

    Raises:
        EngineLostError: in all processes. ``WeightsLostError`` where none has lost more.
    """
    if not isinstance(engine, EngineWithWeights):
        yield
        return
    lost = None
    try:
        yield
    except EngineLostError as error:
        lost = error
    errors = [each for each in gather_object([lost]) if each is not None]
    if errors:
        # False sorts before True: an error of another kind comes before that of lost weights.
        raise min(errors, key=lambda each: isinstance(each, WeightsLostError)) from lost
