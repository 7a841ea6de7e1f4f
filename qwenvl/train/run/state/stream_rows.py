"""Does a stream give a resumed run the rows that it gave the run of its checkpoint?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from qwenvl.train.run.resumed import SettingsError
from qwenvl.types import Record

COMPARED = 256  # the last rows that were drawn


class StreamRows(TrainerCallback, ExportableState):
    """Compares the last rows that a checkpoint's run drew from a stream with what a resumed run finds in their place.

    A stream is read from its beginning again, and the rows that were drawn are passed over. From one that is shuffled
    anew, a resumed run would draw rows twice and leave others out.
    """

    def __init__(self) -> None:
        self._records: Sequence[Record] = ()
        self._drawn = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: how many rows were drawn, and a hash of the last of them."""
        return {"args": {}, "attributes": {"drawn": self._drawn, "rows": self._hash(self._drawn)}}

    def on_train_begin(self, args, state, control, train_dataloader=None, **kwargs):
        """Compares.

        Raises:
            SettingsError: there are other rows.
        """
        dataset = getattr(train_dataloader, "dataset", None)
        streamed = any(part.streamed for part in getattr(dataset, "parts", ()))
        self._records = dataset.records if streamed else ()
        self._count(args, state)
        kept = state.stateful_callbacks.get(type(self).__name__) if state.global_step else None
        drawn, rows = (kept["attributes"][name] for name in ("drawn", "rows")) if kept else (0, None)
        if streamed and rows is not None and rows != self._hash(drawn):
            raise SettingsError(
                "the stream gives other rows than when the checkpoint was written: rows "
                f"{max(0, drawn - COMPARED)} to {drawn - 1}, the last before step {state.global_step}, differ. A "
                "resumed run goes on behind them, so the stream must give the same ones: shuffle it with a seed; or "
                "begin a new run with these weights: --start_from_weights"
            )
        state.stateful_callbacks[type(self).__name__] = self.state()

    def on_step_end(self, args, state, control, **kwargs):
        """Counts the rows that were drawn."""
        self._count(args, state)

    def _count(self, args: Any, state: Any) -> None:
        step = args.world_size * args.per_device_train_batch_size * args.gradient_accumulation_steps
        self._drawn = -(-state.global_step // args.num_iterations) * step

    def _hash(self, drawn: int) -> str | None:
        """Of the questions and solutions before the one of this number. None where the stream has begun anew."""
        if not 0 < drawn <= len(self._records):
            return None
        last = self._records[max(0, drawn - COMPARED) : drawn]
        texts = [[*(message.text for message in record.messages), record.solution] for record in last]
        return hashlib.sha256(repr(texts).encode()).hexdigest()
