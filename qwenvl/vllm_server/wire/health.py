"""What a server is and how it fares."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

PROTOCOL = 4  # both sides must have the same

_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers"),
    *("intermediate_size", "num_attention_heads", "num_key_value_heads"),
)


def sizes_of(config: Any) -> dict[str, int | None]:
    """The sizes of a language model, by their names in its configuration of transformers."""
    return {name: getattr(config.get_text_config(), name, None) for name in _SIZES}


@dataclass(frozen=True)
class Health:
    """What ``GET /health`` says. It answers while the engine samples too.

    Attributes:
        boot: random, one for each process: another one means that the server was started again.
        version: of its weights. 0: those that it was started with. None: it has some of the parts of a version.
        model, model_type: the checkpoint it was started with, and its family.
        sizes: of its language model, see ``sizes_of``.
        tied: the head is the embedding: it is not among the weights.
        workers: processes that the model is split over.
        nccl: the version of NCCL that they have, such as 23007 for 2.30.7. 0: they compute on a CPU.
        raised: why the server is about to end, if it is.
    """

    protocol: int
    boot: str
    pid: int
    version: int | None
    model: str
    model_type: str
    sizes: dict[str, int | None]
    dtype: str
    tied: bool
    vllm: str
    max_model_len: int
    seconds_up: float
    busy: bool
    asleep: bool
    workers: int
    nccl: int
    raised: str | None

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, body: bytes) -> Health:
        """
        Raises:
            ValueError: if no server of this protocol wrote it.
        """
        try:
            said = json.loads(body)
            protocol = said["protocol"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"not a sampling server: it answered {body[:200]!r}") from error
        if protocol != PROTOCOL:
            raise ValueError(
                f"the server speaks protocol {protocol}, this program {PROTOCOL}: run both from one version"
            )
        return cls(**said)
