"""Drafts of the next tokens of a completion: what followed the same tokens before.

A draft is a guess that costs no forward. One forward then gives the distributions of all of its tokens at once. Each
token is drawn from its distribution as without a draft, and the draft holds as far as the draws equal it. So a draft
changes how many forwards there are, and never what is drawn: with the probability p(x) of its token x it holds, and
else the draw has the law of p without x. (Speculative sampling with a deterministic proposal, arXiv:2211.17192.)
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

LONGEST_SUFFIX = 6
"""Most tokens that are compared: a longer match says little more about what follows."""

HISTORY_TOKENS = 65_536
"""Most tokens of earlier completions that are kept, at most about 150 MB with the tables over them."""

LEAST_CHANCE = 0.25
"""A draft goes on as long as its next token is reached and right with this probability."""

MEMORY = 32
"""Tokens over which the running share of right ones is taken."""

TRY_EVERY = 1024
"""One in so many drafts is tried, with a single token, where drafts have failed: it may have changed.

A drafted token of one completion widens the forward of all.
"""

_BREAK = -1  # between texts: no suffix and no draft reaches over it


class SuffixTable:
    """Texts of tokens, and where each run of up to ``LONGEST_SUFFIX`` tokens stood last in them.

    Example:
        >>> table = SuffixTable()
        >>> table.add([5, 6, 7, 8])
        >>> table.behind((6,), most=4), table.behind((9,), most=4)
        ([7, 8], [])
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._run = 0  # tokens since the last break
        self._places: dict[tuple[int, ...], int] = {}  # of the token behind each run

    def add(self, text: Sequence[int]) -> None:
        """Adds a text that stands by itself."""
        self.end()
        for token in text:
            self.append(token)

    def append(self, token: int) -> None:
        """Adds a token to the last text."""
        place = len(self._tokens)
        run = tuple(self.suffix())
        for start in range(len(run)):
            self._places[run[start:]] = place
        self._tokens.append(token)
        self._run += 1

    def end(self) -> None:
        """The last text ends."""
        if self._run:
            self._tokens.append(_BREAK)
            self._run = 0

    def suffix(self) -> list[int]:
        """The last tokens of the last text, at most ``LONGEST_SUFFIX``."""
        length = min(self._run, LONGEST_SUFFIX)
        return self._tokens[len(self._tokens) - length :]

    def has(self, run: tuple[int, ...]) -> bool:
        """True where a token stood behind ``run``."""
        return run in self._places

    def behind(self, run: tuple[int, ...], most: int) -> list[int]:
        """The tokens that stood behind ``run`` when it last occurred, at most ``most``."""
        place = self._places.get(run)
        if place is None:
            return []
        found = self._tokens[place : place + most]
        return found[: found.index(_BREAK)] if _BREAK in found else found


class DraftHistory:
    """The completions of earlier steps, the newest ``most`` tokens of them.

    Its state depends on the added completions alone. So a resumed run that loads them drafts as the uninterrupted one.
    """

    def __init__(self, most: int = HISTORY_TOKENS):
        self.most = most
        self.table = SuffixTable()
        self._kept: deque[tuple[int, list[int]]] = deque()
        self._by_prompt: dict[int, SuffixTable] = {}
        self.tokens = 0

    def add(self, prompt: int, completion: Sequence[int]) -> None:
        """Adds a completion of the prompt with this number (see ``prompt_number``)."""
        tokens = list(completion)[-self.most :]
        if self.tokens + len(tokens) > self.most:
            # The table cannot forget a single text. Half of the room is freed at once, so that it is rarely made again.
            self._drop_oldest(self.most // 2 - len(tokens))
        self._keep(prompt, tokens)

    def of_prompt(self, prompt: int) -> SuffixTable:
        """The kept completions of one prompt."""
        return self._by_prompt.get(prompt, SuffixTable())

    def state(self) -> list[tuple[int, list[int]]]:
        """The kept completions and the numbers of their prompts, as ``load`` takes them."""
        return list(self._kept)

    def load(self, kept: Sequence[tuple[int, list[int]]]) -> None:
        """Becomes the history that had this state."""
        self.table = SuffixTable()
        self._by_prompt = {}
        self._kept.clear()
        self.tokens = 0
        for prompt, tokens in kept:
            self._keep(prompt, tokens)

    def _keep(self, prompt: int, tokens: list[int]) -> None:
        self._kept.append((prompt, tokens))
        self._by_prompt.setdefault(prompt, SuffixTable()).add(tokens)
        self.table.add(tokens)
        self.tokens += len(tokens)

    def _drop_oldest(self, rest: int) -> None:
        """Keeps the newest completions that have at most ``rest`` tokens together."""
        kept = deque(self._kept)
        tokens = self.tokens
        while kept and tokens > rest:
            tokens -= len(kept.popleft()[1])
        self.load(kept)


class DraftLengths:
    """Chooses the length of a draft by how often drafts behind as long a suffix were right so far."""

    def __init__(self, most: int):
        """``most``: tokens that a draft has at most."""
        self.most = most
        self.right = [0.5] * (LONGEST_SUFFIX + 1)  # running share of right tokens
        self.skipped = [0] * (LONGEST_SUFFIX + 1)  # drafts that were not made since the last one

    def choose(self, suffix: int) -> int:
        """How many tokens the next draft behind a suffix of this length has. It counts those of which there is none."""
        chance = self.right[suffix]
        length = 0
        while length < self.most and chance >= LEAST_CHANCE:
            length += 1
            chance *= self.right[suffix]
        if length:
            return length
        self.skipped[suffix] += 1
        if self.skipped[suffix] < TRY_EVERY:
            return 0
        self.skipped[suffix] = 0
        return 1

    def seen(self, suffix: int, drafted: int, right: int) -> None:
        """A draft of ``drafted`` tokens was right in the first ``right`` of them. What stands behind is not known."""
        for _ in range(right):
            self.right[suffix] += (1 - self.right[suffix]) / MEMORY
        if right < drafted:
            self.right[suffix] -= self.right[suffix] / MEMORY


@dataclass(frozen=True)
class DraftTokens:
    """Tokens that may follow, and the length of the suffix that they stood behind."""

    tokens: list[int]
    suffix: int


@dataclass
class DraftCounts:
    """Counts of sampling, over completions.

    Attributes:
        tokens: that forwards gave. A first token comes with the prompt, and is not among them.
        forwards: one for each completion in a forward.
        drafted: tokens of drafts.
        accepted: drafted tokens that equal the drawn ones.
    """

    tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0


@runtime_checkable
class CountsDrafts(Protocol):
    """An engine that can draft."""

    def take_counts(self) -> DraftCounts:
        """The counts since the last call. All 0 where the engine does not draft."""
        ...


class CompletionDrafts:
    """Drafts for one completion: from itself, and from other texts.

    The longest suffix decides. With equal ones the completion itself comes first, then the other texts in their order.
    """

    def __init__(self, start: Sequence[int], others: Sequence[SuffixTable], lengths: DraftLengths):
        """``start``: the last tokens of the prompt."""
        self._own = SuffixTable()
        self._own.add(start)
        self._tables = (self._own, *others)
        self._lengths = lengths

    def append(self, token: int) -> None:
        """The completion has one token more."""
        self._own.append(token)

    def end(self) -> None:
        """Something stands here that is no text, such as a picture."""
        self._own.end()

    def propose(self, most: int) -> DraftTokens:
        """A draft of at most ``most`` tokens, empty where nothing is known, or drafts have failed."""
        if most < 1:
            return DraftTokens([], 0)
        suffix = tuple(self._own.suffix())
        tables: Sequence[SuffixTable] = self._tables
        source = None
        length = 0
        # From short to long: a table without a run has no longer one that ends with it.
        while length < len(suffix):
            run = suffix[len(suffix) - length - 1 :]
            tables = [table for table in tables if table.has(run)]
            if not tables:
                break
            source = tables[0]
            length += 1
        if source is None:
            return DraftTokens([], 0)
        size = min(most, self._lengths.choose(length))
        return DraftTokens(source.behind(suffix[len(suffix) - length :], size) if size else [], length)


@dataclass
class Drafter:
    """The texts that an engine drafts from, and the counts of its drafts.

    Only completions that are sampled within ``learning`` change it. Evaluations and probes in between leave it as it
    is, so that a run which is resumed behind them draws what the uninterrupted one does.

    Attributes:
        lengths: how long drafts are.
        history: the completions of earlier steps.
        counts: since they were last taken (``take_counts``).
    """

    lengths: DraftLengths
    history: DraftHistory = field(default_factory=DraftHistory)
    counts: DraftCounts = field(default_factory=DraftCounts)
    is_learning: bool = False

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Completions that are sampled within are remembered."""
        self.is_learning = True
        try:
            yield
        finally:
            self.is_learning = False

    def begin(self) -> Drafter:
        """The drafter of one sampling: itself within ``learning``, else a copy."""
        if self.is_learning:
            return self
        return Drafter(copy.deepcopy(self.lengths), self.history)

    def of_prompts(
        self, prompts: Sequence[Sequence[int]], group_size: int, media: Collection[int]
    ) -> list[CompletionDrafts]:
        """Drafts for G completions of each prompt.

        Args:
            prompts: their tokens.
            media: tokens that stand for pictures and not for text.
        """
        drafts = []
        texts: dict[int, SuffixTable] = {}
        for prompt in prompts:
            number = prompt_number(prompt, media)
            if number not in texts:  # records often share their question
                texts[number] = SuffixTable()
                add_text(texts[number], prompt, media)
            text = texts[number]
            # Earlier answers to the same question are a better guess than the question itself.
            others = (self.history.of_prompt(number), text, self.history.table)
            for _ in range(group_size):
                drafts.append(CompletionDrafts(text.suffix(), others, self.lengths))
        return drafts

    def verified(self, draft: DraftTokens, drawn: int, last: int) -> None:
        """Notes how a draft did.

        Args:
            drawn: tokens that its forward gave, at least 1. All but the last of them equal the draft.
            last: the last one. It equals the draft only where it ends the completion.
        """
        # A slice, which is empty where the whole draft was right and ``last`` stands behind it.
        ends_within = draft.tokens[drawn - 1 : drawn] == [last]
        accepted = drawn if ends_within else drawn - 1
        self.lengths.seen(draft.suffix, min(len(draft.tokens), drawn), accepted)
        self.counts.drafted += len(draft.tokens)
        self.counts.accepted += accepted
        self.counts.tokens += drawn
        self.counts.forwards += 1

    def remember(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        group_size: int,
        media: Collection[int],
    ) -> None:
        """Adds completions to the history, within ``learning``. Row n belongs to prompt n // G."""
        if not self.is_learning:
            return
        numbers = [prompt_number(prompt, media) for prompt in prompts]
        for row, completion in enumerate(completions):
            self.history.add(numbers[row // group_size], completion)

    def take_counts(self) -> DraftCounts:
        """The counts since the last call."""
        taken = self.counts
        self.counts = DraftCounts()
        return taken

    def state(self) -> dict:
        """The state that ``load`` takes, of plain lists and numbers."""
        return {"history": self.history.state(), "right": self.lengths.right, "skipped": self.lengths.skipped}

    def load(self, state: dict) -> None:
        """Becomes the drafter that had this state."""
        self.history.load(state["history"])
        self.lengths.right = list(state["right"])
        self.lengths.skipped = list(state["skipped"])


def add_text(table: SuffixTable | CompletionDrafts, tokens: Sequence[int], media: Collection[int]) -> None:
    """Adds tokens to a text, which ends at each token of ``media``."""
    for token in tokens:
        if token in media:
            table.end()
        else:
            table.append(token)


def prompt_number(prompt: Sequence[int], media: Collection[int]) -> int:
    """A number for the text of a prompt without its pictures."""
    # Python salts the hashes of texts, and not those of numbers: a resumed run finds its history again.
    return hash(tuple(token for token in prompt if token not in media))
