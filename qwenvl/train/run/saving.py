"""The part of the trainer that saves checkpoints: each is whole, or it is none."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from qwenvl.train.run.checkpoints import first_to_go
from qwenvl.train.run.manifest import is_sealed, seal, total_bytes

_MARGIN = 1.05  # what a checkpoint may need more than the one before it


class SavingTrainer(Trainer):
    """A Trainer that looks for space before it saves, seals what it saved, and only then deletes older checkpoints."""

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        runs = self._get_output_dir(trial=trial)
        folder = Path(runs) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save:
            if folder.exists():  # of a run that ended while it saved, or that went on from an earlier step
                shutil.rmtree(folder)
            self._require_space(Path(runs))
        self.accelerator.wait_for_everyone()
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()  # all of them have written their files
        if self.args.should_save:
            seal(folder)
            self._delete_others(folder, limit)

    def _delete_others(self, newest: Path, limit: int | None) -> None:
        """Keep ``limit`` checkpoints, ``newest`` and the best one among them."""
        if limit is None:
            return
        best = self.state.best_model_checkpoint
        kept = {newest.resolve()} | ({Path(best).resolve()} if best else set())
        others = [each for each in first_to_go(newest.parent, newest) if each.resolve() not in kept]
        room = max(0, limit - len(kept))
        for each in others[: max(0, len(others) - room)]:
            shutil.rmtree(each, ignore_errors=True)

    def _require_space(self, folder: Path) -> None:
        """Refuse to begin a checkpoint that would fill the disk: it would be torn, and may take others with it.

        Raises:
            OSError: with the number of a full disk, saying how much is needed and how much there is.
        """
        before = [each for each in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if is_sealed(each)]
        newest = max(before, key=lambda each: each.stat().st_mtime, default=None)
        needed = self._bytes_to_save() if newest is None else _MARGIN * total_bytes(newest)
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise OSError(
                errno.ENOSPC,
                f"a checkpoint takes about {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free, so none was begun",
            )

    def _bytes_to_save(self) -> int:
        """What the first checkpoint will hold of weights and optimizer. 0 where these are spread over processes."""
        if self.is_deepspeed_enabled or self.is_fsdp_enabled or self.model is None:
            return 0
        adapter = getattr(self.model, "peft_config", None) is not None
        saved = [each for each in self.model.parameters() if each.requires_grad or not adapter]
        states = [] if self.args.save_only_model or self.optimizer is None else self.optimizer.state.values()
        moments = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        return sum(each.numel() * each.element_size() for each in [*saved, *moments])
