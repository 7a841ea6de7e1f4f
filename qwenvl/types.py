"""The dataclasses that cross the borders between rooms, and the legend of shape letters.

Shape letters, used in docstrings and as suffixes of local names everywhere in the project:

    P   prompts in a micro-batch
    G   completions sampled per prompt (the group; ``grpo_sample_size``)
    N   completions in a micro-batch, N = P * G. Row n belongs to prompt n // G
    L   prompt tokens, left-padded
    T   completion tokens, right-padded
    K   reward functions
    F   frames of one clip
    V   vocabulary

Nothing here computes anything, though batches choose their rows. Importing this module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length"]

MOST_DRAFTED = 128  # tokens of a draft that vLLM verifies at a time


@dataclass(frozen=True)
class Message:
    """One turn of a conversation, whose ``text`` still holds its ``<video>`` and ``<image>`` tags."""

    role: Role
    text: str


@dataclass(frozen=True)
class LibraryCount:
    """The number of frames that a clip gets, in the words of the package ``qwen_vl_utils`` and by its rules.

    Attributes:
        nframes: this number, rounded to pairs.
        fps: frames per second of the clip.
        min_frames, max_frames: bounds on the number that ``fps`` gives.
        listed: the clip is a list or folder of frames. All of them are taken where nothing else is said.
        beside_turns: ``nframes`` or ``fps`` stands beside the turns, where it may also be a note about the file.
    """

    nframes: int | None = None
    fps: float | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    listed: bool = False
    beside_turns: bool = False


@dataclass(frozen=True)
class LibrarySize:
    """The size of a clip's frames or of an image, in the words of the package ``qwen_vl_utils`` and by its rules.

    Attributes:
        min_pixels, max_pixels: bounds on the pixels of a frame or image.
        total_pixels: bound on the pixels of all frames of a clip, which its pairs of frames share.
        resized_height, resized_width: this size, rounded to whole vision tokens. Both or none.
    """

    min_pixels: int | None = None
    max_pixels: int | None = None
    total_pixels: float | None = None
    resized_height: int | None = None
    resized_width: int | None = None


@dataclass(frozen=True)
class ClipMeta:
    """Settings of a record for one clip: in ``meta``, in the part or object that holds the clip, and beside the turns.

    Attributes:
        frame_counts: source frames of each concatenated segment, in order, or None where the clip is not segmented.
        min_frames, max_frames: bounds on the frames taken, of each segment with ``dynamic_sample``, else of the clip.
        dynamic_sample: draw the number of frames and their places anew each epoch.
        video_fps: frames per second to take, in place of the flags'. frames_fps: those of a clip stored as images.
        video_start, video_end: seconds between which frames are taken.
        min_pixels, max_pixels: bounds on the pixels of a frame, in place of the flags'.
        frame_times: seconds at which each frame of a clip stored as images is shown, rising.
        count: the number of frames by the rules of ``qwen_vl_utils``. Bounds and rates above then have no say.
        size: the size of frames by these rules. The bounds on pixels above then have no say.
    """

    frame_counts: tuple[float, ...] | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    dynamic_sample: bool = False
    video_fps: float | None = None
    video_start: float | None = None
    video_end: float | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    frames_fps: float | None = None
    frame_times: tuple[float, ...] | None = None
    count: LibraryCount | None = None
    size: LibrarySize | None = None


@dataclass(frozen=True)
class Record:
    """One validated row of a data set. No tensors.

    Attributes:
        id: unique name of the row in its data set.
        messages: the prompt, without the turn that holds the solution.
        solution: the last assistant turn, raw.
        videos, images: absolute media paths, in the order of their tags.
        clip_meta: one entry per video, None where the record says nothing of it.
        fields: the row as it was read, unknown keys included. Reward functions get them as columns.
        where: file and place, ``data/sop.json[17]`` or ``data/sop.jsonl:18``. Every error about the row begins with it.
        dataset: name of its data set, where it was drawn from several.
        index: its number among all records that are drawn from.
        image_sizes: one entry per image, None where the record does not say its size. Empty: none has an entry.
        unread: keys of the row that hold something, and that its form does not read. Rewards may.
        hints: what was changed or noticed while the row was read.
        problem: why the row can't be read, where bad rows are left out. Such a record only stands in the row's place.
    """

    id: str
    messages: tuple[Message, ...]
    solution: str
    videos: tuple[str, ...]
    images: tuple[str, ...]
    clip_meta: tuple[ClipMeta | None, ...]
    fields: dict[str, Any]
    where: str
    dataset: str = ""
    index: int = 0
    unread: tuple[str, ...] = ()
    hints: tuple[Hint, ...] = ()
    problem: str = ""
    image_sizes: tuple[LibrarySize | None, ...] = ()

    @property
    def question_hash(self) -> int:
        """Equal for records that ask the same of the same media, which may be spans of one clip, in this process."""
        spans = tuple(meta and (meta.video_start, meta.video_end) for meta in self.clip_meta)
        return hash((self.messages, self.videos, spans, self.images))


class Hint(NamedTuple):
    """Something in a record that is no error and yet worth a look.

    Attributes:
        kind: a few words under which it is counted.
        message: a sentence that does not name the record, so that it is the same for all records it is true of.
    """

    kind: str
    message: str


@dataclass(frozen=True)
class FrameInfo:
    """The frames of a clip that the model saw. The rollouts keep it.

    Attributes:
        path: the clip.
        indices: F source frame numbers, rising. Where their number would be odd, the last one is repeated.
        times: F presentation times in seconds, from the stream and not from index / rate.
        segments: for each frame the number of its segment, from 0, or None where the clip has none.
        seconds_per_frame: mean distance of neighbouring frames before any repeat (1 / effective frame rate).
        rescaled: the segments of ``meta`` did not sum to the clip's frames and were rescaled.
        duration: seconds of the whole clip. 0 where they are not known, as in rows of earlier versions.
        looked_at: of a look, start and end in seconds of the span that it took the frames from, within the clip and
            its bounds. None for the clip of a prompt, and in rows of earlier versions.
    """

    path: str
    indices: tuple[int, ...]
    times: tuple[float, ...]
    segments: tuple[int, ...] | None = None
    seconds_per_frame: float = 0.0
    rescaled: bool = False
    duration: float = 0.0
    looked_at: tuple[float, float] | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> FrameInfo:
        """From its JSON object."""
        own: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
        return cls(**own)


@dataclass(frozen=True)
class VideoClip:
    """Frames of one clip.

    Attributes:
        frames: F x 3 x H x W, uint8.
        decoded_size: H and W in the file, where the frames are resized already, else None.
    """

    frames: Tensor
    info: FrameInfo
    decoded_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Sample:
    """A record with its media decoded.

    Attributes:
        chat: messages as chat templates take them, ``{"role": ..., "content": [part, ...]}``, a part being
            ``{"type": "video"}``, ``{"type": "image"}`` or ``{"type": "text", "text": ...}``.
        images: each 3 x H x W, uint8.
        epoch: how often its data set was gone through before. It is part of every random seed that concerns the
            sample.
        fitted: for each clip the frames that it would have had, and those that it has so that the prompt fits into
            ``max_prompt_length`` (``--fit_frames``). None where none was left out.
        teacher: what a teacher sees of the record (``--teacher_sees``). None without.
    """

    record: Record
    chat: list[dict[str, Any]]
    videos: tuple[VideoClip, ...] = ()
    images: tuple[Tensor, ...] = ()
    epoch: int = 0
    fitted: tuple[tuple[int, int], ...] | None = None
    teacher: Sample | None = None

    @property
    def fewer_frames(self) -> list[str]:
        """Of each clip that has fewer frames, so that the prompt fits, how many: ``8 of 16 frames``."""
        return [f"{after} of {before} frames" for before, after in self.fitted or () if after < before]


@dataclass(frozen=True)
class BadSample:
    """A record that could not become a sample (``on_bad_sample skip``): left out, counted, listed, never replaced."""

    record: Record
    error: str


@dataclass
class PromptBatch:
    """The model inputs of P prompts. P is 0 where every sample of a batch was bad or its places are empty.

    Attributes:
        records, epochs: P.
        frames: P lists of what was seen of each of the prompt's videos.
        input_ids, attention_mask: P x L, left-padded.
        pixel_values, pixel_values_videos: flattened patches (patches x patch values) as uint8: normalisation happens on
            the device, so that prefetched micro-batches stay small. None without images or videos.
        image_grid_thw, video_grid_thw: images x 3 and videos x 3, in patches.
        seconds_per_grid: one float32 per video, seconds between its temporal patches.
        images_per_prompt, videos_per_prompt: P counts. Media are stored in the order of the prompts.
        fitted: P, of the samples.
        opened_think: P, whether the prompt ends inside a think block, which the completion then goes on with.
        bad: samples left out of this batch.
        teacher: the same P prompts as a teacher sees them. None: there is no teacher, or it sees the same.
    """

    records: list[Record]
    epochs: list[int]
    frames: list[list[FrameInfo]]
    input_ids: Tensor
    attention_mask: Tensor
    pixel_values: Tensor | None = None
    image_grid_thw: Tensor | None = None
    pixel_values_videos: Tensor | None = None
    video_grid_thw: Tensor | None = None
    seconds_per_grid: Tensor | None = None
    images_per_prompt: list[int] = field(default_factory=list)
    videos_per_prompt: list[int] = field(default_factory=list)
    fitted: list[tuple[tuple[int, int], ...] | None] = field(default_factory=list)
    opened_think: list[bool] = field(default_factory=list)
    bad: list[BadSample] = field(default_factory=list)
    teacher: PromptBatch | None = None

    def __len__(self) -> int:
        return len(self.records)

    def select(self, rows: Sequence[int]) -> PromptBatch:
        """Return a batch of the prompts ``rows``, in this order, each with its media. Its ``bad`` is empty.

        Columns that then hold nothing but padding are cut.
        """
        rows = list(rows)
        mask = self.attention_mask[rows]
        start = int(mask.any(0).float().argmax()) if mask.numel() else 0
        seconds = self.seconds_per_grid
        media = places_of(self.videos_per_prompt, rows)
        images, image_grids = select_media(self.pixel_values, self.image_grid_thw, self.images_per_prompt, rows)
        videos, video_grids = select_media(self.pixel_values_videos, self.video_grid_thw, self.videos_per_prompt, rows)
        lists = {name: value for name, value in vars(self).items() if isinstance(value, list) and name != "bad"}
        return PromptBatch(
            **{name: [value[row] for row in rows] for name, value in lists.items()},
            input_ids=self.input_ids[rows, start:],
            attention_mask=mask[:, start:],
            pixel_values=images,
            image_grid_thw=image_grids,
            pixel_values_videos=videos,
            video_grid_thw=video_grids,
            seconds_per_grid=seconds[media] if seconds is not None and media else None,
            teacher=None if self.teacher is None else self.teacher.select(rows),
        )

    def pin_memory(self) -> PromptBatch:
        """Return the same batch in page-locked memory. Data loaders ask for it where there is a CUDA device."""
        return self._with_tensors(lambda tensor: tensor.pin_memory())

    def on(self, device: torch.device | str) -> PromptBatch:
        """Return the same batch with all tensors on ``device``.

        It is not named ``to``: accelerate calls ``.to`` on every batch that it prefetches.
        """
        return self._with_tensors(lambda tensor: tensor.to(device))

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> PromptBatch:
        tensors = {f.name: value for f in fields(self) if hasattr(value := getattr(self, f.name), "to")}
        return replace(self, **{name: change(tensor) for name, tensor in tensors.items()})


def places_of(counts: Sequence[int], rows: Sequence[int]) -> list[int]:
    """The places of the items of ``rows`` in a list that holds ``counts[p]`` items of each prompt p, in order."""
    starts = [0, *accumulate(counts)]
    return [place for row in rows for place in range(starts[row], starts[row + 1])]


def select_media(
    values: Tensor | None, grids: Tensor | None, per_prompt: Sequence[int], rows: Sequence[int]
) -> tuple[Tensor | None, Tensor | None]:
    """The patches, unless they were dropped, and the grids of the media of the prompts ``rows``, or None and None."""
    if grids is None or (values is not None and not len(values)):  # blank media belong to no prompt and stay
        return values, grids
    media = places_of(per_prompt, rows)
    if media == [*range(len(grids))]:  # no copy of a long video
        return values, grids
    if not media:
        return None, None
    if values is not None:
        values = values[places_of(grids.prod(-1).tolist(), media)]
    return values, grids[media]


@dataclass(frozen=True)
class SamplingParams:
    """The settings by which completions are sampled.

    Attributes:
        max_new_tokens: a completion is truncated there, with finish reason ``length``.
        temperature: logits are divided by it. 0 means greedy.
        top_k: sample among this many of the most probable tokens. 0: all.
        top_p: sample among the most probable tokens whose probabilities sum to this.
        min_p: sample among tokens at least this times as probable as the most probable one.
        repetition_penalty: positive logits of tokens in the prompt or the completion are divided by it, negative ones
            multiplied, also when greedy (arXiv:1909.05858, section 4.1).
        stop_strings: texts that end a completion, with finish reason ``stop``. Their tokens and their text stay in it.
        entropies: compute the entropies of the distributions too. They cost a few passes over each token's logits.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop_strings: tuple[str, ...] = ()
    entropies: bool = False


@dataclass(frozen=True)
class Speculation:
    """Drafts that a vLLM server makes itself and verifies several at a time (speculative decoding).

    Attributes:
        tokens: of a draft at most. They are what followed the newest tokens before, in the prompt or the completion.
    """

    tokens: int

    @classmethod
    def parse(cls, text: str) -> Speculation:
        """From ``ngram:TOKENS``, the form of ``--vllm_speculative`` and of the server's ``--speculative``.

        Raises:
            ValueError: the text is something else.

        Example:
            >>> Speculation.parse("ngram:4")
            Speculation(tokens=4)
        """
        method, _, tokens = text.partition(":")
        if method != "ngram" or not (tokens.isascii() and tokens.isdigit()) or not 1 <= int(tokens) <= MOST_DRAFTED:
            raise ValueError(f"expected ngram:TOKENS with 1 to {MOST_DRAFTED} tokens, such as ngram:4, got {text!r}")
        return cls(int(tokens))


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool in a completion, and its answer.

    Attributes:
        name: of the tool. Empty where the call could not be read.
        arguments: in their types, or as the model wrote them where they could not be read.
        clips: the frames that it showed.
        pictures: how many pictures it showed besides.
        text: what it said.
        error: why it was not answered, in the words that the model read, or None.
        tokens: of the answer, shared by the calls of a turn. 0 for the last turn's calls, which have none.
        seconds: that the tool took.
    """

    name: str
    arguments: dict[str, Any]
    clips: tuple[FrameInfo, ...] = ()
    pictures: int = 0
    text: str = ""
    error: str | None = None
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Turn:
    """A part of a completion: the tokens up to its end, or up to the point where tools answer.

    Attributes:
        text: of its sampled tokens, without special tokens.
        calls: of tools, in order.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Turn:
        """From its JSON object."""
        calls = (ToolCall(**{**call, "clips": tuple(map(FrameInfo.of, call["clips"]))}) for call in row["calls"])
        return cls(row["text"], tuple(calls))


@dataclass
class RolloutBatch:
    """Sampled completions of P prompts, G each.

    Attributes:
        completion_ids: N x T, padded on the right with the pad token.
        completion_mask: N x T bool, the tokens that were sampled. The end token and the tokens of a stop string count,
            and what follows does not.
        texts: N decoded completions without special tokens, with a stop string that ended them. Of what tools have
            appended there is nothing in them.
        finish_reasons: N, ``stop`` (an end token or stop string) or ``length`` (cut at ``generation_max_length``).
        ended_by: N, the token that ended a completion, such as ``<|im_end|>``. Empty where it was cut, or a stop string
            ended it. None: not known.
        logprobs: N x T log-probabilities the sampler gave its own tokens, at the sampling temperature, before top-k,
            top-p, min-p, the repetition penalty and the suppression of vision tokens. None: the engine has none.
        entropies: N x T, of the distributions that these are log-probs of, in nats. None: not asked for, or not known.
        boots: the processes that sampled, where these are others than the trainer's. A restarted one has another name.
        whole: with tools, the completions as the model takes them (``PromptInputs``), with what was appended to them.
            Its attention mask has all tokens.
        turns: with tools, those of each of the N completions.
    """

    completion_ids: Tensor
    completion_mask: Tensor
    texts: list[str]
    finish_reasons: list[FinishReason]
    logprobs: Tensor | None = None
    entropies: Tensor | None = None
    boots: frozenset[str] = frozenset()
    whole: Any = None
    turns: list[tuple[Turn, ...]] | None = None
    ended_by: list[str] | None = None

    def width(self, rows: slice | Sequence[int]) -> int:
        """The tokens of the longest of some rows, at least 1."""
        mask = (self.completion_mask if self.whole is None else self.whole.attention_mask)[rows]
        return max(1, int(mask.sum(1).max()) if len(mask) else 0)


TOTAL = "total"  # beside the names of reward functions
# The ends of the main metrics of an evaluation, behind its name: the mean reward, and of a warm-up the mean loss.
EVALUATED = f"_{TOTAL}_reward"
EVALUATED_LOSS = "_loss"


@dataclass
class RewardBatch:
    """Rewards of N completions by K functions.

    Attributes:
        names, weights: K.
        components: K lists of N values, None where a function does not apply to a row.
        total: N weighted sums over the functions that apply, float32. NaN where none does: the completion has no reward
            and its group is compared without it.
        metrics: what the functions logged besides, by name N values: the mean of the call that scored the row, None
            where it logged none.
        failed: for each function N times whether it failed on the row, which then has no value of it.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    components: list[list[float | None]]
    total: Tensor
    metrics: dict[str, list[float | None]] = field(default_factory=dict)
    failed: dict[str, list[bool]] = field(default_factory=dict)

    def totals(self) -> list[float | None]:
        """N totals as plain numbers, None for a completion without a reward."""
        return [None if math.isnan(total) else total for total in self.total.tolist()]

    def columns(self) -> dict[str, list[float | None]]:
        """N values of each function by its name, and the totals as ``total``."""
        return dict(zip(self.names, self.components, strict=True)) | {TOTAL: self.totals()}
