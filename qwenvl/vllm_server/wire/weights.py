"""Weights that a server is to take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

from torch import Tensor

from qwenvl.vllm_server.wire.body import Refusal, pack, require, unpack

# Layers of the checkpoint that vLLM holds as one.
TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)


@dataclass(frozen=True)
class WeightsRequest:
    """Weights, or a part of them. A server that has some of the parts of a version samples nothing.

    Attributes:
        version: that the server has with the last part.
        base: the version whose weights stay where none are sent. None: all weights of the language model are sent.
        path: a file of safetensors on the server's host. Its names are those of the checkpoint or of the loaded model.
            None: the weights are in the message, or come along a link.
        link: the name of the link that they come along, see ``LinkRequest``.
        shapes: name to shape of what comes along the link, in this order, in the server's type.
        part, parts: this message is number ``part`` of ``parts``, from 0. They are sent in order.
        deadline_s: seconds from its arrival after which nobody waits for the answer.
        tensors: the weights, where there is no path.

    Example:
        >>> WeightsRequest(version=3, base=None, path="/dev/shm/weights-3.safetensors").pack()
    """

    version: int
    base: int | None
    path: str | None = None
    part: int = 0
    parts: int = 1
    deadline_s: float = 600.0
    link: str | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def pack(self) -> bytes:
        head = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "tensors"}
        return pack(head, self.tensors)

    @classmethod
    def unpack(cls, body: bytes) -> WeightsRequest:
        """
        Raises:
            Refusal: if the request is malformed.
        """
        head, tensors = unpack(body)
        try:
            request = cls(**head, tensors=tensors)
            require(request.version >= 1, f"version must be at least 1 (0: as started), got {request.version}")
            require(0 <= request.part < request.parts, f"part {request.part} of {request.parts}")
        except TypeError as error:
            raise Refusal("request", f"not a request with weights: {error}") from error
        ways = (request.path is not None, bool(tensors), request.link is not None)
        require(sum(ways) <= 1, "weights come by a path, in the message or along a link, not by several")
        require(request.link is not None or not request.shapes, "shapes are of weights that come along a link")
        return request


@dataclass(frozen=True)
class WeightsAnswer:
    """What the server has after a message with weights.

    Attributes:
        version: of its weights. None where parts are still to come.
        seconds: that it took.
        boot: the process, see `Health`.
    """

    version: int | None
    seconds: float
    boot: str

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, body: bytes) -> WeightsAnswer:
        return cls(**json.loads(body))


def layer_of(name: str) -> str:
    """The layer of vLLM that holds a weight. A message must have all weights of a layer, or none.

    Example:
        >>> layer_of("layers.0.self_attn.k_proj.bias")
        'layers.0.self_attn.q_proj+k_proj+v_proj'
    """
    module = name.split(".")[:-1]
    if "experts" in module:
        return ".".join(module[: module.index("experts") + 1])
    if module:
        module[-1] = next(("+".join(group) for group in TOGETHER if module[-1] in group), module[-1])
    return ".".join(module)
