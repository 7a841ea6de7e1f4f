"""What a server is and how it fares."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

PROTOCOL = 3  # both sides must have the same


@dataclass(frozen=True)
class Health:
    """What ``GET /health`` says. It answers while the engine samples too.

    Attributes:
        boot: random, one for each process: another one means that the server was started again.
        version: of its weights. 0: those that it was started with. None: it has some of the parts of a version.
        model, model_type: the checkpoint it was started with, and its family.
        feature_width: of the rows of features that it takes.
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
    vocab_size: int
    feature_width: int
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
