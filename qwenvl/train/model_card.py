"""The part of a model card, ``README.md``, that says how the model sees clips and how to ask it about one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from transformers import ProcessorMixin, Trainer

from qwenvl.data.saved_processor import SETTINGS_FILE, PromptSettings, bounds_whole_clips

CARD = "README.md"
METHOD = "GRPO"
_BEGIN, _END = "<!-- inputs: written by qwenvl -->", "<!-- end of inputs -->"


class DescribedTrainer(Trainer):
    """A Trainer whose saved models say how they see clips, wherever a model card is written.

    Attributes:
        prompt_settings: of the run. They must be there before the first model is saved.
        trained_by: how, for the title of the card.
    """

    trained_by = METHOD

    prompt_settings: PromptSettings

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the Trainer's own card, as a push to the hub does, and our section into it."""
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
        """Write the settings of prompts beside a saved model, and the section on them into its card."""
        describe_inputs(folder, self.prompt_settings, self.processing_class, self.trained_by)


def describe_inputs(
    folder: str | Path,
    settings: PromptSettings,
    processor: ProcessorMixin,
    trained_by: str = DescribedTrainer.trained_by,
) -> None:
    """Write the settings of prompts beside a saved model, and a section on them into its card.

    What else the card says stays, and an earlier section gives way.

    Args:
        settings: of the run.
        processor: that is saved beside the card.
        trained_by: for the title of a card that is not there yet.
    """
    settings.save(folder)
    path = Path(folder) / CARD
    title = f"# {Path(settings.base_model).name}, trained by {trained_by}\n"
    card = path.read_text(encoding="utf-8") if path.is_file() else title
    section = f"{_BEGIN}\n{inputs_section(settings, bounds_whole_clips(processor))}\n{_END}"
    earlier = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    if earlier.search(card):
        card = earlier.sub(lambda _: section, card)
    else:
        card = f"{card.rstrip()}\n\n{section}\n"
    path.write_text(card, encoding="utf-8")


def inputs_section(settings: PromptSettings, whole_clips: bool) -> str:
    """Return what the card says of frames, sizes and prompts, with code that asks about a clip.

    Args:
        whole_clips: the processor bounds the pixels of whole clips.
    """
    frames, prompts = settings.frames, settings.prompts
    lines = [
        "## Inputs",
        "",
        f"Trained from `{settings.base_model}` with qwenvl.",
        "",
        f"- Frames: {settings.frames_per_second:g} per second of a clip, {frames.video_min_frames} to "
        f"{frames.video_max_frames} in all, evenly from the first to the last.",
        f"- Pixels of a frame: {prompts.video_min_frame_pixels:,} to {prompts.video_max_frame_pixels:,}.",
        f"- Pixels of an image: {prompts.min_pixels:,} to {prompts.max_pixels:,}.",
    ]
    if prompts.template_arguments:
        lines.append(f"- Chat template: {prompts.template_arguments}, which are now its defaults.")
    if settings.system is not None:
        lines.append(f"- System turn of every prompt: {settings.system!r}.")
    if settings.prompt_template is not None:
        lines.append(f"- Template of the last user turn: {settings.prompt_template!r}.")
    lines += [
        "",
        "The processor saved here has these bounds: of the same frames and images `AutoProcessor` makes the inputs of "
        f"training. `{SETTINGS_FILE}` holds all settings. What training took from single records (`meta`, or fewer "
        "frames by `--fit_frames`) is not among them.",
        "",
        "The processor takes all frames that it is given (`do_sample_frames` is off). Given the path of a video it "
        "would take every frame, so read the frames first:",
        "",
        "```python",
        ASK.strip(),
        "```",
    ]
    if whole_clips:
        lines += [
            "",
            "One difference is left. This family's processor has a lower bound on the pixels of a whole clip and none "
            f"on those of a frame. Frames below {prompts.video_min_frame_pixels:,} pixels in clips of more than two "
            "frames are therefore scaled up less than in training, or not at all. Scale such frames up before.",
        ]
    return "\n".join(lines)


ASK = """
from transformers import AutoModelForImageTextToText, AutoProcessor

from qwenvl import read_clip

folder = "."  # of this model
model = AutoModelForImageTextToText.from_pretrained(folder)
processor = AutoProcessor.from_pretrained(folder)
clip = read_clip("clip.mp4", folder)
content = [{"type": "video"}, {"type": "text", "text": "\\nWhich steps are shown?"}]
text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
inputs = processor(text=[text], videos=[clip.frames], video_metadata=[clip.metadata], return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=512)
print(processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""
