"""The section of a model card that says how the model sees clips, and how to ask it about one."""

from __future__ import annotations

from transformers import ProcessorMixin

from qwenvl.data.saved_processor import SETTINGS_FILE, PromptSettings, bounds_whole_clips

PLACES = {
    "uniform": "evenly from the first to the last",
    "change": "half of them evenly and half where the picture changes (`frame_sampler change`)",
}
"""Where frames are taken, by ``frame_sampler``."""


def inputs_section(settings: PromptSettings, processor: ProcessorMixin) -> str:
    """Return what the card says of frames, sizes and prompts, with code that asks about a clip.

    Args:
        processor: that is saved beside the card.
    """
    frames, prompts = settings.frames, settings.prompts
    lines = [
        "## Inputs",
        "",
        f"- Frames: {settings.frames_per_second:g} per second of a clip, {frames.video_min_frames} to "
        f"{frames.video_max_frames} in all, {PLACES[frames.frame_sampler]}.",
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
    if not bounds_whole_clips(processor):  # Qwen2-VL and Qwen2.5-VL
        lines += [
            "",
            "`generate` of transformers places the text after a clip elsewhere than training did, by more the longer "
            "the clip is. About clips of more than a few seconds ask by `qwenvl try` or vLLM: they do as training did.",
        ]
    if bounds_whole_clips(processor):
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
