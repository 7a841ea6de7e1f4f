"""The messages between trainer and server, and their bytes. Both sides import this file.

    GET  /health    -> Health
    POST /sample    SampleRequest -> SampleAnswer
    POST /weights   WeightsRequest -> Health
    POST /sleep     -> Health, of a server that shares the trainer's GPU. The next request wakes it

The header ``Deadline`` of a POST has the seconds from its arrival, waiting for other requests included, until the
client gives up. A body is a file of safetensors: the tensors of the message, and its other fields as JSON in a tensor
of bytes. Nothing in it is executed when it is read, and numbers arrive to the bit. An answer other than 200 is a text.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from qwenvl.files import cache_root
from qwenvl.types import FinishReason, SamplingParams

PROTOCOL = 8  # in each message: both sides must have the same
TOKEN = "QWENVL_VLLM_TOKEN"  # the environment variable: a command line can be read by everybody on the machine
HEAD = "head"  # the tensor that holds the JSON
AGAIN = 503  # the HTTP status where another try, or another server, may have an answer

Message = TypeVar("Message")


class Refusal(Exception):
    """A server's answer other than 200: 400 where the request is wrong, ``AGAIN`` where the server can't answer it now.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def require(condition: bool, message: str) -> None:
    """Refuses a request as wrong where the condition does not hold."""
    if not condition:
        raise Refusal(message)


def secret() -> str:
    """The token of each request: ``$QWENVL_VLLM_TOKEN``, else a random one in a file that only this user can read.

    Raises:
        Refusal: it has characters that no header of HTTP can have.
    """
    given = os.environ.get(TOKEN)
    if given:
        return _in_a_header(given, f"${TOKEN}")
    path = cache_root() / "vllm-token"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # of mode 0600
            file.write(secrets.token_hex(32))
            file.flush()
            with suppress(FileExistsError):  # another process was first
                os.link(file.name, path)
    return _in_a_header(path.read_text(encoding="utf-8", errors="replace"), str(path))


def _in_a_header(token: str, where: str) -> str:
    """A token without white space around it, such as the line end that an editor writes."""
    stripped = token.strip()
    require(
        stripped.isascii() and stripped.isprintable() and bool(stripped),
        f"{where}: the token must have printable characters of ASCII alone, such as letters and digits",
    )
    return stripped


@contextmanager
def memory_file(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """The path of a file of safetensors in memory, readable by processes of this user on this machine.

    It has no name in any folder, so the memory is free when the block ends or the process dies, even by kill -9.
    """
    with open(os.memfd_create("qwenvl-weights"), "wb") as file:
        file.write(save(dict(tensors)))
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def pack(message: Any) -> bytes:
    """A dataclass of this file as bytes. Its tensors may be on any device, and may be views."""
    tensors: dict[str, Tensor] = {}

    def plain(value: Any) -> Mapping[str, Any]:
        """A value that JSON does not know, a tensor or a dataclass, as one that it does."""
        if not isinstance(value, Tensor):
            return vars(value)
        name = f"tensor.{len(tensors)}"
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()  # safetensors refuses shared memory
        return {"tensor": name}

    text = json.dumps({"protocol": PROTOCOL, **vars(message)}, default=plain).encode()
    return save({HEAD: torch.frombuffer(bytearray(text), dtype=torch.uint8), **tensors})


def unpack(kind: type[Message], body: bytes) -> Message:
    """A packed message. Its tuples are lists.

    Raises:
        Refusal: the bytes are no such message, or another version of this program packed them.
    """
    tensors: dict[str, Tensor] = {}

    def restored(found: dict[str, Any]) -> Any:
        """The tensor that an object of JSON names, or the object itself."""
        return tensors[found["tensor"]] if found.keys() == {"tensor"} else found

    try:
        tensors |= load(body)
        head = json.loads(bytes(tensors.pop(HEAD).numpy()), object_hook=restored)
        protocol = head.pop("protocol")
        if protocol == PROTOCOL:
            return kind(**head)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise Refusal(f"not a {kind.__name__} of this program ({reason}): {body[:100]!r}") from error
    raise Refusal(f"the message is of protocol {protocol}, this program has {PROTOCOL}: run both from one version")


def architecture(config: Any, tied: bool | None = None) -> dict[str, Any]:
    """The properties that the models of policy and server must share, from the configuration of transformers.

    Args:
        tied: the head is the embedding, and not among the weights. None: as the configuration says.
    """
    text = config.get_text_config()
    if tied is None:
        tied = bool(config.tie_word_embeddings or getattr(text, "tie_word_embeddings", False))
    names = ["vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"]
    sizes = {name: getattr(text, name, None) for name in [*names, "num_attention_heads", "num_key_value_heads"]}
    return {"model type": config.model_type, **sizes, "head tied to the embeddings": tied}


@dataclass
class Health:
    """The state of a server. It answers while the engine samples too.

    Attributes:
        boot: random, one for each process: another one means that the server was started again.
        version: of its weights. 0: those that it was started with. None: it has some of the parts of a version.
        model: the checkpoint that it was started with.
        architecture: of that, see ``architecture``.
        dtype: that it computes in.
    """

    boot: str
    version: int | None
    model: str
    architecture: dict[str, Any]
    dtype: str


@dataclass
class Medium:
    """An image or a video of a prompt, as it enters the language model.

    Attributes:
        kind: ``image`` or ``video``.
        offset: the prompt's token where its range begins. The range is its placeholders. A Qwen3-VL video has several
            runs of them, with times between: its range goes from its first vision start to its last vision end.
        embedded: bool for each token of the range: True for a token that is a row of ``features``.
        features: rows x width, as the merger computes them, those of the deepstack mergers beside them.
        grid: t, h, w in patches.
    """

    kind: str
    offset: int
    embedded: Tensor
    features: Tensor
    grid: Sequence[int]


@dataclass
class Prompt:
    """One prompt.

    Attributes:
        ids: its tokens, without padding, int64.
        positions: 3 x tokens (time, height, width), int64, by the trainer's rule.
        seed: of its first completion. Completion k of its group has ``seed + k``.
        media: in the order of their offsets.
        room: the most tokens of its completions. None: those of the request's ``params``.
    """

    ids: Tensor
    positions: Tensor
    seed: int
    media: Sequence[Medium] = ()
    room: int | None = None

    def __post_init__(self) -> None:
        self.media = [Medium(**each) if isinstance(each, dict) else each for each in self.media]


@dataclass
class SampleRequest:
    """Prompts, and how their completions are sampled.

    Attributes:
        version: of the weights that must sample. The server refuses where it has others.
        group_size: completions of each prompt.
        params: without entropies, which vLLM does not give.
        banned_ids: tokens that are never sampled.
        end_ids: tokens that end a completion. They stay in it.
    """

    version: int
    group_size: int
    params: SamplingParams
    banned_ids: Sequence[int]
    end_ids: Sequence[int]
    prompts: Sequence[Prompt]

    def __post_init__(self) -> None:
        if isinstance(self.params, dict):
            self.params = SamplingParams(**self.params | {"stop_strings": tuple(self.params["stop_strings"])})
        self.prompts = [Prompt(**each) if isinstance(each, dict) else each for each in self.prompts]

    def room_of(self, prompt: Prompt) -> int:
        """The most tokens that completions of a prompt may have."""
        return self.params.max_new_tokens if prompt.room is None else prompt.room


@dataclass
class SampleAnswer:
    """N = prompts x group_size completions, row n of prompt n // group_size.

    Attributes:
        version: of the weights that sampled.
        boot: the process that sampled, see `Health`.
        ids: the tokens of each completion, the one that ended it included.
        logprobs: of softmax(logits / T), over all tokens, before bans, penalty and truncation. T is the temperature,
            and 1 when greedy.
        finish_reasons: ``stop`` or ``length``.
        cached_tokens: tokens of all prompts that were not computed again.
        drafted_tokens, accepted_tokens: of drafts, in all, and right ones. 0 where the server makes none.
    """

    version: int
    boot: str
    ids: list[list[int]]
    logprobs: list[list[float]]
    finish_reasons: list[str]
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def problem(self, request: SampleRequest) -> str | None:
        """Why this cannot be the answer to a request, or None: other weights, a wrong shape, or a forbidden token."""
        if self.version != request.version:
            return f"weights of version {self.version} sampled, and not of {request.version}"
        size = request.group_size
        wanted = len(request.prompts) * size
        for name, rows in (("ids", self.ids), ("logprobs", self.logprobs), ("finish_reasons", self.finish_reasons)):
            if len(rows) != wanted:
                return f"{len(rows)} completions in {name}, and {wanted} were asked for"
        banned = set(request.banned_ids)
        for n, ids in enumerate(self.ids):
            room = request.room_of(request.prompts[n // size])
            logprobs = self.logprobs[n]
            if not 1 <= len(ids) <= room:
                return f"completion {n} has {len(ids)} tokens, and 1 to {room} were asked for"
            if len(logprobs) != len(ids) or not all(map(math.isfinite, logprobs)):
                return f"completion {n} has {len(ids)} tokens, and other than as many finite log-probs"
            if forbidden := banned.intersection(ids):
                return f"completion {n} has token {forbidden.pop()}, which is never to be sampled"
            if self.finish_reasons[n] not in get_args(FinishReason):
                return f"completion {n} has ended for no known reason: {self.finish_reasons[n]!r}"
        return None


@dataclass
class WeightsRequest:
    """A part of all weights of the language model. A server that has some of the parts of a version samples nothing.

    Parts are sent in order. Those that a server has already are ignored: several processes of a run may send them.

    Attributes:
        version: that the server has with the last part.
        part: its number, from 0.
        last: no other part follows.
        path: a file of safetensors on the server's machine. None: the weights are in the message.
        tensors: the weights, where there is no path, by their names in the checkpoint.

    Example:
        >>> WeightsRequest(version=3, part=0, last=True, path="/proc/17/fd/5")
    """

    version: int
    part: int
    last: bool
    path: str | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
