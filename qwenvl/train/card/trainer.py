"""A Trainer whose saved models say what they are: base, data, rewards, settings, results, and how they see clips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Trainer

from qwenvl.data.saved_processor import PromptSettings
from qwenvl.model.loading import unwrap
from qwenvl.train.card.document import Metadata, hub_name, read_metadata, write_card
from qwenvl.train.card.inputs import inputs_section
from qwenvl.train.card.training import results_of, training_facts, training_section

METHOD = "GRPO"


class DescribedTrainer(Trainer):
    """A Trainer that writes a model card with each checkpoint and each model that it saves.

    Attributes:
        prompt_settings: of the run. They must be there before the first model is saved.
        learned_by: the rewards or targets of the run.
        trained_by: how, for the card.
    """

    trained_by = METHOD

    prompt_settings: PromptSettings
    learned_by: Any

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the Trainer's own card, as a push to the hub does, and our sections into it."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            self.describe(self.args.output_dir)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            self.describe(output_dir or self.args.output_dir)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self.is_world_process_zero():  # the Trainer copies weights and processor from the checkpoint, but no card
            self.describe(self.args.output_dir)
        super()._push_from_checkpoint(checkpoint_folder)

    def describe(self, folder: str | Path) -> None:
        """Write the settings of prompts beside a saved model, and what it is into its card."""
        settings, args = self.prompt_settings, self.args
        settings.save(folder)
        facts = training_facts(
            args, self.trained_by, settings.base_model, self.learned_by, self.state.global_step, self.state.log_history
        )
        # A warm-up saves its adapter folded in, beside checkpoints that have it as it is.
        adapter = unwrap(self.model) is not self.model and not (Path(folder) / "config.json").is_file()
        names = (args.dataset_use or "").split(",")
        metadata = Metadata(
            name=Path(args.output_dir).resolve().name,
            library="peft" if adapter else "transformers",
            base_model=base_on_the_hub(settings.base_model),
            adapter=adapter,
            tags=("qwenvl", "grpo" if self.trained_by == METHOD else "sft"),
            datasets=tuple(name.split(":")[1].split("%")[0] for name in names if name.startswith("hf:")),
            results=results_of(facts),
        )
        sections = {
            "training": training_section(facts),
            "inputs": inputs_section(settings, self.processing_class),
            "evaluation": "",  # of other weights
        }
        write_card(folder, f"# {title(settings.base_model, self.trained_by)}\n", sections, metadata)


def title(base_model: str, trained_by: str) -> str:
    """The first line of a card."""
    return f"{Path(base_model).name}, trained by {trained_by}"


def base_on_the_hub(model: str) -> str | None:
    """The model on the hub that a model is or comes from, as far as cards in folders tell. None where they do not."""
    if found := hub_name(model):
        return found
    above = read_metadata(model).get("base_model") if Path(model).is_dir() else None
    return above if isinstance(above, str) and hub_name(above) else None
