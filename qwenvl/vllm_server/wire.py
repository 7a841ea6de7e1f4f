"""The messages between trainer and server: contents, checks, and bytes. Both sides import this file.

    GET  /health    -> Health
    POST /sample    SampleRequest -> SampleAnswer
    POST /weights   WeightsRequest -> Health
    POST /sleep     -> Health, of a server that shares the trainer's GPU
    POST /wake      -> Health

Health is JSON. Another body is a file of safetensors: the tensors of the message, and its other fields as JSON in a
tensor of bytes. Nothing in it is executed when it is read, and numbers arrive to the bit. An answer other than 200 is
JSON ``{"kind": ..., "error": ...}``, which `Refusal.of_answer` reads.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from qwenvl.files import cache_root

PROTOCOL = 5  # both sides must have the same
TOKEN = "QWENVL_VLLM_TOKEN"  # the environment variable: a command line can be read by everybody on the machine
MOST_BYTES = 2**34  # of a body
HEAD = "head"  # the tensor that holds the JSON

KINDS = {
    "request": 400,  # it is malformed, or asks for what the model cannot do
    "token": 401,  # the token is missing or wrong
    "page": 403,  # a web page sent it
    "version": 409,  # the server has other weights
    "size": 413,  # the body is larger than the server takes
    "asleep": 423,  # the server has released its memory: POST /wake first
    "starting": 503,  # the model is being loaded
    "engine": 500,  # the engine raised. The server ends, and its script starts it again
    "busy": 503,  # another request ran until this one's deadline
    "deadline": 504,  # not finished at the deadline. The server ends, as after "engine"
}
"""Why a server refuses a request, and the HTTP status."""


class Refusal(Exception):
    """A server's answer other than 200.

    Attributes:
        kind: a key of ``KINDS``.
    """

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind

    @property
    def status(self) -> int:
        return KINDS[self.kind]

    def body(self) -> bytes:
        """The JSON of the answer."""
        return json.dumps({"kind": self.kind, "error": str(self)}).encode()

    @classmethod
    def of_answer(cls, status: int, body: bytes) -> Refusal:
        """From an answer of ``status``. An answer of another program has the kind ``request``."""
        try:
            found = json.loads(body)
            return cls(found["kind"] if found["kind"] in KINDS else "request", str(found["error"]))
        except (ValueError, TypeError, KeyError):
            return cls("request", f"HTTP {status}: {body[:200].decode(errors='replace')}")


def require(condition: bool, message: str) -> None:
    """Refuses a message as malformed where the condition does not hold."""
    if not condition:
        raise Refusal("request", message)


def require_tensor(tensor: Tensor, where: str, dims: int, dtype: torch.dtype | None = None) -> None:
    """Refuses a tensor of another number of dimensions or another dtype."""
    fits = tensor.dim() == dims and (dtype is None or tensor.dtype == dtype)
    expected = f"{dims} dimensions" + (f" of {dtype}" if dtype else "")
    require(fits, f"{where}: expected {expected}, got {tuple(tensor.shape)} of {tensor.dtype}")


def secret() -> str:
    """The token of each request: ``$QWENVL_VLLM_TOKEN``, else a random one in a file that only this user can read."""
    if given := os.environ.get(TOKEN):
        return given
    path = cache_root() / "vllm-token"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # of mode 0600
            file.write(secrets.token_hex(32))
            file.flush()
            with suppress(FileExistsError):  # another process was first
                os.link(file.name, path)
    return path.read_text()


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

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            name = f"tensor.{len(tensors)}"
            # A copy each: safetensors refuses tensors that share memory.
            tensors[name] = value.detach().to("cpu", copy=True).contiguous()
            return {"tensor": name}
        if is_dataclass(value):
            return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        if isinstance(value, Mapping):
            return {key: plain(each) for key, each in value.items()}
        return [*map(plain, value)] if isinstance(value, (list, tuple)) else value

    text = json.dumps(plain(message)).encode()
    return save({HEAD: torch.frombuffer(bytearray(text), dtype=torch.uint8), **tensors})


def unpack(body: bytes) -> dict[str, Any]:
    """The fields of a packed message, nested dataclasses as dictionaries, tuples as lists.

    Raises:
        Refusal: the bytes are no such message.
    """
    try:
        tensors = load(body)
        head = json.loads(
            bytes(tensors.pop(HEAD).numpy()),
            object_hook=lambda found: tensors[found["tensor"]] if found.keys() == {"tensor"} else found,
        )
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise Refusal("request", f"the body is not safetensors with a head in JSON: {error}") from error
    require(isinstance(head, dict), "the head must be a JSON object")
    return head


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refusal("request", f"not {what}: {type(error).__name__}: {error}") from error


_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers"),
    *("intermediate_size", "num_attention_heads", "num_key_value_heads"),
)


def sizes_of(config: Any) -> dict[str, int | None]:
    """The sizes of a language model, by their names in its configuration of transformers."""
    return {name: getattr(config.get_text_config(), name, None) for name in _SIZES}


@dataclass(frozen=True)
class Health:
    """The state of a server. It answers while the engine samples too.

    Attributes:
        boot: random, one for each process: another one means that the server was started again.
        version: of its weights. 0: those that it was started with. None: it has some of the parts of a version.
        model, model_type: the checkpoint it was started with, and its family.
        sizes: of its language model, see ``sizes_of``.
        dtype: that it computes in.
        tied: the head is the embedding, and not among the weights.
        raised: why the server is about to end, if it is.
    """

    protocol: int
    boot: str
    version: int | None
    model: str
    model_type: str
    sizes: dict[str, int | None]
    dtype: str
    tied: bool
    busy: bool
    asleep: bool
    raised: str | None

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, body: bytes) -> Health:
        """
        Raises:
            ValueError: no server of this protocol wrote it.
        """
        try:
            found = json.loads(body)
            protocol = found["protocol"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"not a sampling server: it answered {body[:200]!r}") from error
        if protocol != PROTOCOL:
            raise ValueError(
                f"the server speaks protocol {protocol}, this program {PROTOCOL}: run both from one version"
            )
        return cls(**found)


@dataclass(frozen=True)
class Draw:
    """How completions are sampled. See ``qwenvl.rollout.engine.SamplingParams``, whose names these are."""

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
        embedded: bool for each token of the range: True for a token that is a row of ``features``.
        features: rows x width, as the merger computes them, those of the deepstack mergers beside them.
        grid: t, h, w in patches.
    """

    kind: str
    offset: int
    embedded: Tensor
    features: Tensor
    grid: tuple[int, int, int]

    def check(self, where: str, length: int) -> None:
        """Raises `Refusal` where the fields do not fit each other, or a prompt of ``length`` tokens."""
        require(self.kind in ("image", "video"), f'{where}.kind: expected "image" or "video", got {self.kind!r}')
        require_tensor(self.embedded, f"{where}.embedded", dims=1, dtype=torch.bool)
        require_tensor(self.features, f"{where}.features", dims=2)
        require(self.features.dtype.is_floating_point, f"{where}.features: expected floats, got {self.features.dtype}")
        end = self.offset + len(self.embedded)
        require(0 <= self.offset < end <= length, f"{where}: tokens {self.offset} to {end} of a prompt of {length}")
        rows, placeholders = len(self.features), int(self.embedded.sum())
        require(rows == placeholders, f"{where}: {rows} rows of features for {placeholders} placeholders")
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
        """Raises `Refusal` where the fields do not fit each other."""
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
    """Prompts, and how their completions are sampled.

    Attributes:
        version: of the weights that must sample. The server refuses where it has others.
        group_size: completions of each prompt.
        banned_ids: tokens that are never sampled.
        end_ids: tokens that end a completion. They stay in it.
        deadline_s: seconds from its arrival, waiting for other requests included, until the client gives up.
    """

    version: int
    group_size: int
    draw: Draw
    banned_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    deadline_s: float
    prompts: tuple[Prompt, ...]

    @classmethod
    def unpack(cls, body: bytes) -> SampleRequest:
        """
        Raises:
            Refusal: the request is malformed: where, what was expected and what was found.
        """
        head = unpack(body)
        with _reading("a request to sample"):
            prompts = []
            for each in head["prompts"]:
                media = (Medium(**one | {"grid": tuple(one["grid"])}) for one in each["media"])
                prompts.append(Prompt(**each | {"media": tuple(media)}))
            ids = {name: tuple(map(int, head[name])) for name in ("banned_ids", "end_ids")}
            request = cls(**head | ids | {"draw": Draw(**head["draw"]), "prompts": tuple(prompts)})
            request.check()
        return request

    def check(self) -> None:
        """Raises `Refusal` where the fields do not fit each other."""
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
        cached_tokens: tokens of all prompts that were not computed again.
    """

    version: int
    boot: str
    ids: tuple[Tensor, ...]
    logprobs: tuple[Tensor, ...]
    finish_reasons: tuple[str, ...]
    cached_tokens: int = 0

    @classmethod
    def unpack(cls, body: bytes) -> SampleAnswer:
        head = unpack(body)
        with _reading("an answer with completions"):
            rows = {name: tuple(head[name]) for name in ("ids", "logprobs", "finish_reasons")}
            return cls(**head | rows)


@dataclass(frozen=True)
class WeightsRequest:
    """Weights, or a part of them. A server that has some of the parts of a version samples nothing.

    A part has all weights of a layer of vLLM or none: q, k and v with their biases, gate and up.

    Attributes:
        version: that the server has with the last part.
        base: the version whose weights stay where none are sent. None: all weights of the language model are sent.
        part, parts: this message is number ``part`` of ``parts``, from 0. They are sent in order.
        path: a file of safetensors on the server's machine. Its names are those of the checkpoint or of the loaded
            model. None: the weights are in the message.
        deadline_s: seconds from its arrival until the client gives up.
        tensors: the weights, where there is no path.

    Example:
        >>> WeightsRequest(version=3, base=None, path="/proc/17/fd/5")
    """

    version: int
    base: int | None
    part: int = 0
    parts: int = 1
    path: str | None = None
    deadline_s: float = 600.0
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def unpack(cls, body: bytes) -> WeightsRequest:
        """
        Raises:
            Refusal: the request is malformed.
        """
        head = unpack(body)
        with _reading("a request with weights"):
            request = cls(**head)
            require(request.version >= 1, f"version must be at least 1 (0: as started), got {request.version}")
            require(0 <= request.part < request.parts, f"part {request.part} of {request.parts}")
            require(request.path is None or not request.tensors, "weights come by a path or in the message, not both")
        return request
