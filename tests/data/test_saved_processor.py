"""The processor that is saved with a model, loaded by plain transformers, against the collator that training uses."""

import logging
from itertools import product

import pytest
import torch
from transformers import AutoProcessor

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_length import timed_metadata
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.data.saved_processor import processor_as_trained, read_clip
from qwenvl.demo.tiny import make_processor
from qwenvl.types import Sample
from tests.data.test_collator import clip, noise, sample

THINKING = """
{%- if add_generation_prompt -%}<think>
{% if enable_thinking is defined and not enable_thinking %}</think>
{% endif %}{%- endif -%}"""


def sample_of(clips=(), images=(), text="Which?") -> Sample:
    """Clips as (frames, height, width), images as (height, width), of random pixels."""
    videos = [clip(*size, gap=0.7, seed=n) for n, size in enumerate(clips)]
    stills = [noise(3, *size, seed=n) for n, size in enumerate(images, start=9)]
    return sample("<video>" * len(videos) + "<image>" * len(stills) + text, videos, stills, system="Be brief.")


def saved(processor, folder, frames=None, **prompts):
    """The processor as it is loaded from the folder that a run saves it to, and the collator of the run."""
    settings = PromptSettings(frames or FrameOptions(), PromptOptions(**prompts))
    processor_as_trained(processor, settings).save_pretrained(folder)
    return AutoProcessor.from_pretrained(folder), GRPOCollator(processor, settings.prompts)


def plain_inputs(processor, sample):
    """The inputs that plain transformers makes: nothing is passed but the template's text, the media and the times."""
    return processor(
        text=[processor.apply_chat_template(sample.chat, add_generation_prompt=True)],
        images=list(sample.images) or None,
        videos=[clip.frames for clip in sample.videos] or None,
        videos_kwargs={"video_metadata": [timed_metadata(clip.info.times) for clip in sample.videos]}
        if sample.videos
        else {},
        return_tensors="pt",
    )


def assert_same(plain, batch, processor):
    """Equal ids, grids and patches; the collator's patches are uint8 and are normalised here."""
    assert plain["input_ids"].tolist() == batch.input_ids.tolist()
    for name, grid, part in (
        ("pixel_values", "image_grid_thw", processor.image_processor),
        ("pixel_values_videos", "video_grid_thw", processor.video_processor),
    ):
        if getattr(batch, name) is None:
            assert name not in plain
            continue
        assert plain[grid].tolist() == getattr(batch, grid).tolist()
        patches = getattr(batch, name)
        values = (part.image_mean, part.image_std)
        mean, std = (torch.tensor(each).repeat_interleave(patches.shape[1] // 3) for each in values)
        torch.testing.assert_close(plain[name], (patches / 255 - mean) / std, atol=1e-5, rtol=0)


PROCESSORS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")  # Qwen3.5 has that of Qwen3-VL


@pytest.fixture(params=PROCESSORS)
def processor(request):
    """The processor of each family."""
    return make_processor(request.param)


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {
            "video_min_frame_pixels": 60_000,
            "video_max_frame_pixels": 70_001,
            "min_pixels": 50_000,
            "max_pixels": 60_003,
        },
    ],
    ids=["default bounds", "bounds of its own"],
)
def test_the_same_media_give_the_same_inputs(processor, tmp_path, bounds):
    plain, collator = saved(processor, tmp_path, **bounds)
    clips = [(2, 720, 1280), (8, 720, 1280), (30, 360, 300)]
    for chosen, images in ((clips[:1], []), (clips[1:], [(480, 640), (2000, 300)]), ([], [(90, 70), (400, 400)])):
        sample = sample_of(chosen, images)
        assert_same(plain_inputs(plain, sample), collator([sample])["prompts"], plain)


def test_a_saved_processor_resizes_as_training_does_above_the_lower_bound(processor, tmp_path):
    """The lower bound too, except for Qwen3-VL, whose processor knows one for whole clips alone."""
    bounds = {"video_min_frame_pixels": 20_000, "video_max_frame_pixels": 90_000}
    plain, collator = saved(processor, tmp_path, **bounds)
    factor = processor.video_processor.patch_size * 2
    whole_clips = hasattr(processor, "vision_start_token")
    differ = set()
    for count, height, width in product((2, 6, 16), (64, 100, 131, 333), (64, 150, 277, 900)):
        height_now, width_now = collator.ruler.frame_size((height, width), None)
        patches = plain.video_processor.get_num_of_video_patches(count, height, width, {})
        if patches != count // 2 * height_now * width_now // (factor // 2) ** 2:
            differ.add((count, height, width))
    small = {
        (count, height, width)
        for count, height, width in product((6, 16), (64, 100, 131, 333), (64, 150, 277, 900))
        if round(height / factor) * round(width / factor) * factor**2 < 20_000
    }
    assert differ == (small if whole_clips else set())


def test_a_saved_processor_has_the_rate_and_the_bounds_of_frames(processor, tmp_path):
    plain, _ = saved(processor, tmp_path, FrameOptions(base_interval=0.5, video_min_frames=6, video_max_frames=13))
    video = plain.video_processor
    assert (video.fps, video.min_frames, video.max_frames, video.do_sample_frames) == (2.0, 6, 12, False)
    plain, _ = saved(processor, tmp_path, FrameOptions(video_fps=3.0))
    assert (plain.video_processor.fps, plain.video_processor.max_frames) == (3.0, 8)


def test_arguments_of_the_template_are_its_defaults(processor, tmp_path):
    processor.chat_template += THINKING
    plain, collator = saved(processor, tmp_path, chat_template_kwargs='{"enable_thinking": false}')
    sample = sample_of([(4, 200, 300)])
    batch = collator([sample])["prompts"]
    assert_same(plain_inputs(plain, sample), batch, plain)
    assert processor.tokenizer.decode(batch.input_ids[0]).endswith("<think>\n</think>\n") and not batch.opened_think[0]
    other = plain.apply_chat_template(sample.chat, add_generation_prompt=True, enable_thinking=True)
    assert other.endswith("<think>\n"), "they can still be chosen anew"


def test_a_template_that_cannot_be_changed_to_fit_is_reported(tmp_path, caplog):
    processor = make_processor("qwen3_vl")
    processor.chat_template = processor.chat_template.replace(
        "<|vision_start|><|video_pad|>", "{{ '<|vision_' }}start|><|video_pad|>"
    )
    with caplog.at_level(logging.WARNING):
        saved(processor, tmp_path)
    assert "the chat template that is saved writes" in caplog.text


class TestReadClip:
    @pytest.fixture
    def run(self, tmp_path):
        """A folder with prompt settings: a frame every half second, two at least."""
        PromptSettings(FrameOptions(base_interval=0.5, video_min_frames=2), PromptOptions()).save(tmp_path)
        return tmp_path

    def test_read_clip_gives_the_frames_and_times_of_evaluation(self, run, processor, make_clip, make_row, write_rows):
        clip = make_clip("a.mp4", 25, size=(320, 240))
        path = write_rows([make_row(prompt="<video>\nWhich?", video="a.mp4")])
        sample = load_dataset(str(path), training=False, base_interval=0.5, video_min_frames=2)[0]
        taken = read_clip(clip, run)
        assert torch.equal(taken.frames, sample.videos[0].frames)
        assert tuple(taken.metadata.frames_indices) == sample.videos[0].info.times
        plain, collator = saved(processor, run)
        inputs = plain(
            text=[plain.apply_chat_template(sample.chat, add_generation_prompt=True)],
            videos=[taken.frames],
            video_metadata=[taken.metadata],
            return_tensors="pt",
        )
        batch = collator([sample])["prompts"]
        assert_same(inputs, batch, plain)
        if "second_per_grid_ts" in inputs:
            assert list(inputs["second_per_grid_ts"]) == pytest.approx(batch.seconds_per_grid.tolist())

    def test_a_relative_path_is_one_of_this_process(self, run, make_clip, monkeypatch):
        """The decoder's process, which is kept, was started in another folder."""
        first = read_clip(make_clip("elsewhere/a.mp4", 25), run)
        monkeypatch.chdir(run / "elsewhere")
        assert torch.equal(read_clip("a.mp4", run).frames, first.frames)


def test_prompt_settings_are_loaded_as_they_were_saved(tmp_path):
    settings = PromptSettings(
        FrameOptions(video_fps=1.5), PromptOptions(chat_template_kwargs={"a": [1]}), "base", "Be brief.", "Q: {prompt}"
    )
    settings.save(tmp_path)
    assert PromptSettings.load(tmp_path) == settings
