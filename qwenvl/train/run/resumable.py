"""The part of the trainer that resumes: it looks at a checkpoint before it goes on from it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from qwenvl.model.loading import unwrap
from qwenvl.model.reference import Reference
from qwenvl.rollout.engine import EngineLostError
from qwenvl.train.display.console import say
from qwenvl.train.run.beginning import checkpoint_of
from qwenvl.train.run.checkpoints import find_checkpoint, read_state
from qwenvl.train.run.live_weights import load_weights, told_where_they_do_not_fit
from qwenvl.train.run.manifest import is_sealed
from qwenvl.train.run.owed import OwedEvaluation
from qwenvl.train.run.resumed import require_resumable
from qwenvl.train.run.saving import SavingTrainer
from qwenvl.train.run.stalled import StallWatch
from qwenvl.train.run.stopping import StopOnSignal, begin_worker


class ResumableTrainer(SavingTrainer):
    """A Trainer that resumes from a whole checkpoint with the same settings, or says why it can't.

    Attributes:
        steps_trained: optimizer steps of the last call of ``train``, those before its checkpoint left out.
        reference: None where there is none. Checkpoints hold it where it moves (``sync_ref_model``).
    """

    steps_trained = 0
    reference: Reference | None = None
    _evaluates = False

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trains, from the beginning or from a checkpoint.

        Args:
            resume_from_checkpoint: a folder, or True for the newest checkpoint of ``output_dir``. None: what ``resume``
                of the settings says.

        Raises:
            FileNotFoundError: there is no such checkpoint, or it lacks its optimizer or its schedule.
            ValueError: a file of it is cut short, the settings differ, or its weights do not fit the model.
            SystemExit: with status 0, where a signal ended training and a checkpoint was saved (``save_on_signal``).
            EngineLostError: in all processes, where nothing samples any more. The last step is saved as a checkpoint.
        """
        if resume_from_checkpoint is None and self.args.resume != "never":
            checkpoint, begun = checkpoint_of(self.args), 0
        else:
            checkpoint, begun = find_checkpoint(resume_from_checkpoint, self.args.output_dir), 0
        if checkpoint is not None:
            require_resumable(checkpoint, self.args)
            begun = read_state(checkpoint)["global_step"]
        stop, stall = StopOnSignal(self.args), StallWatch(self.args, self.doing)
        added = (stop, stall, OwedEvaluation(self))
        for each in added:
            self.add_callback(each)
        try:
            self._evaluates = False
            with stop.listens(), stall.watches():
                output = super().train(checkpoint, *args, **kwargs)
        except EngineLostError:  # while a step or an evaluation had its completions sampled
            self._save_where_it_stands()
            raise
        finally:
            for each in added:
                self.remove_callback(each)
        self.steps_trained = output.global_step - begun
        if stop.stopped_by is not None:
            self.accelerator.end_training()
            say(stop.told())
            raise SystemExit(0)
        return output

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self._evaluates = True
        metrics = super()._evaluate(*args, **kwargs)
        self._evaluates = False
        return metrics

    def _save_where_it_stands(self) -> None:
        """A checkpoint of the last step, unless there is one. Nothing was added to its weights and gradients since."""
        folder = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.state.global_step and not is_sealed(folder):
            self.control.should_evaluate = self._evaluates  # see ``is_owed``
            self._save_checkpoint(self.model, trial=None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _get_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        loader = super()._get_dataloader(*args, **kwargs)
        if loader.num_workers:
            own = getattr(loader, "base_dataloader", loader)  # accelerate wraps it
            own.worker_init_fn = partial(begin_worker, own.worker_init_fn)
        return loader

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The micro-batches of one optimizer step. None where a resumed run turns out to be finished."""
        if self.control.should_training_stop:
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self._saves_whole_models():
            load_weights(self.model, resume_from_checkpoint)
        else:
            with told_where_they_do_not_fit(resume_from_checkpoint):
                super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.reference is not None and self.args.sync_ref_model and self.args.should_save:
            self.reference.save(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.reference is not None and self.args.sync_ref_model and checkpoint is not None:
            self.reference.load(checkpoint)

    def _load_best_model(self) -> None:
        if self._saves_whole_models():
            load_weights(self.model, self.state.best_model_checkpoint)
        else:
            super()._load_best_model()

    def _saves_whole_models(self) -> bool:
        return unwrap(self.model) is self.model and not (self.is_deepspeed_enabled or self.is_fsdp_enabled)
