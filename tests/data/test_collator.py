import pytest
import torch
from accelerate.utils import send_to_device
from transformers.video_utils import VideoMetadata

from qwenvl.data.chat import chat_messages
from qwenvl.data.collator import GRPOCollator
from qwenvl.demo.tiny import make_processor
from qwenvl.types import BadSample, FrameInfo, Message, Record, Sample, VideoClip

FRAME_BOUNDS = {"video_min_frame_pixels": 4 * 28 * 28, "video_max_frame_pixels": 32 * 28 * 28}
PROCESSORS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")  # Qwen3.5 has that of Qwen3-VL


@pytest.fixture(scope="module", params=PROCESSORS)
def processor(request):
    """The processor of each family."""
    return make_processor(request.param)


@pytest.fixture(scope="module")
def qwen2_5():
    """The processor of Qwen2.5-VL."""
    return make_processor("qwen2_5_vl")


def noise(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def clip(frame_count=4, height=120, width=200, gap=0.5, seed=0, times=None):
    times = times or tuple(gap * i for i in range(frame_count))
    mean = (times[-1] - times[0]) / (len(times) - 1)
    info = FrameInfo("a.mp4", tuple(range(frame_count)), tuple(times), None, mean)
    return VideoClip(noise(frame_count, 3, height, width, seed=seed), info)


def sample(text="Which?", videos=(), images=(), id="1", system=None, epoch=0):
    messages = (Message("system", system),) * (system is not None) + (Message("user", text),)
    record = Record(
        id, messages, "(1) a", ("v",) * len(videos), ("i",) * len(images), (None,) * len(videos), {}, "d[0]"
    )
    return Sample(record, chat_messages(record), tuple(videos), tuple(images), epoch)


def collate(processor, *samples, **options):
    return GRPOCollator(processor, **options)(list(samples))["prompts"]


def normalised(patches, image_processor):
    """uint8 patches as the model wants them: (x / 255 - mean) / std for each of the three channels of a patch."""
    mean = torch.tensor(image_processor.image_mean).repeat_interleave(patches.shape[1] // 3)
    std = torch.tensor(image_processor.image_std).repeat_interleave(patches.shape[1] // 3)
    return (patches / 255 - mean) / std


class TestAgainstTheStockProcessor:
    def test_clips_have_the_same_patches_and_grids(self, processor):
        first, second = clip(4), clip(6, 90, 60, seed=1)
        batch = collate(processor, sample("<video> and <video>", [first, second]), **FRAME_BOUNDS)
        per_clip = [4, 6] if "Qwen3" in type(processor).__name__ else [1, 1]  # its bounds count the whole clip
        stock = [
            processor.video_processor(
                [video.frames],
                size={"shortest_edge": n * 4 * 28 * 28, "longest_edge": n * 32 * 28 * 28},
                do_sample_frames=False,
                cap_pixels_per_frame=False,
                return_tensors="pt",
            )
            for video, n in zip((first, second), per_clip, strict=True)
        ]
        assert batch.pixel_values_videos.dtype == torch.uint8
        pixels = normalised(batch.pixel_values_videos, processor.video_processor)
        torch.testing.assert_close(pixels, torch.cat([s["pixel_values_videos"] for s in stock]), atol=1e-5, rtol=0)
        assert batch.video_grid_thw.tolist() == [s["video_grid_thw"][0].tolist() for s in stock]

    def test_images_have_the_same_patches_and_grids(self, processor):
        images = [noise(3, 200, 100), noise(3, 40, 300, seed=1)]
        batch = collate(processor, sample("<image><image>", images=images), min_pixels=12544, max_pixels=50176)
        stock = processor.image_processor(
            images, size={"shortest_edge": 12544, "longest_edge": 50176}, return_tensors="pt"
        )
        assert batch.pixel_values.dtype == torch.uint8
        pixels = normalised(batch.pixel_values, processor.image_processor)
        torch.testing.assert_close(pixels, stock["pixel_values"], atol=1e-5, rtol=0)
        assert batch.image_grid_thw.tolist() == stock["image_grid_thw"].tolist()

    def test_a_whole_prompt_has_the_same_ids(self, qwen2_5):
        item = sample("<video>\nA <image> b", [clip()], [noise(3, 56, 56)], system="Be brief.")
        batch = collate(qwen2_5, item, **FRAME_BOUNDS)
        stock = qwen2_5(
            text=[qwen2_5.apply_chat_template(item.chat, tokenize=False, add_generation_prompt=True)],
            images=[item.images[0]],
            videos=[item.videos[0].frames],
            images_kwargs={"size": {"shortest_edge": 16 * 28 * 28, "longest_edge": 576 * 28 * 28}},
            videos_kwargs={
                "size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 32 * 28 * 28},
                "do_sample_frames": False,
                "cap_pixels_per_frame": False,
                "video_metadata": [VideoMetadata(total_num_frames=4, fps=2.0, frames_indices=[0, 1, 2, 3])],
            },
            return_tensors="pt",
        )
        assert batch.input_ids.tolist() == stock["input_ids"].tolist()
        assert batch.seconds_per_grid.tolist() == pytest.approx(stock["second_per_grid_ts"]) == [1.0]


class TestTime:
    def test_qwen3_prompts_show_the_true_times(self):
        processor = make_processor("qwen3_vl")
        batch = collate(processor, sample("<video>", [clip(times=(0.0, 0.2, 2.0, 7.0))]), **FRAME_BOUNDS)
        text = processor.tokenizer.decode(batch.input_ids[0]).replace("<|video_pad|>", "")
        # pairs (0.0, 0.2) and (2.0, 7.0); one start and end token for each, none around them all
        assert text.startswith(
            "<|im_start|>user\n<0.1 seconds><|vision_start|><|vision_end|><4.5 seconds><|vision_start|><|vision_end|>"
        )

    def test_uneven_frame_times_become_timestamps_or_their_mean_distance(self, processor, tmp_path, make_row):
        from PIL import Image

        from qwenvl.data.dataset import load_dataset

        frames = [str(tmp_path / f"{number}.png") for number in range(4)]
        for path in frames:
            Image.new("RGB", (56, 56)).save(path)
        row = make_row(prompt="<video>When?", video=[frames], meta={"frame_times": [0, 3.5, 20, 41]})
        item = load_dataset([row], allow_outside_media=True)[0]
        batch = collate(processor, item, **FRAME_BOUNDS)
        text = processor.tokenizer.decode(batch.input_ids[0]).replace("<|video_pad|>", "")
        if "Qwen3" in type(processor).__name__:  # the mean time of each pair, to a tenth of a second
            around = "<|vision_start|><|vision_end|>"
            assert text.startswith(f"<|im_start|>user\n<1.8 seconds>{around}<30.5 seconds>{around}When?")
        # one number for Qwen2.5-VL: 41 s are three distances, and a patch has two frames
        assert batch.seconds_per_grid.tolist() == pytest.approx([2 * 41 / 3])

    def test_seconds_per_grid_are_two_frames_apart(self, processor):
        item = sample("<video><video>", [clip(times=(0.0, 0.2, 2.0, 7.0)), clip(gap=0.3)])
        batch = collate(processor, item, **FRAME_BOUNDS)
        assert batch.seconds_per_grid.dtype == torch.float32
        assert batch.seconds_per_grid.tolist() == pytest.approx([2 * 7 / 3, 0.6])


class TestBatches:
    def samples(self):
        return [
            sample("<video>\nLong question about this clip?", [clip()], id="v"),
            sample("Text only.", id="t", epoch=3),
            sample("<image> and <video>, <video>", [clip(2, seed=1), clip(6, seed=2)], [noise(3, 60, 60)], id="m"),
            sample("<image>?", images=[noise(3, 90, 70, seed=4)], id="i"),
        ]

    def test_each_prompt_of_a_batch_equals_the_prompt_alone(self, processor):
        samples = self.samples()
        batch = collate(processor, *samples)
        assert len(batch) == 4
        assert [record.id for record in batch.records] == ["v", "t", "m", "i"]
        assert batch.epochs == [0, 3, 0, 0]
        assert (batch.images_per_prompt, batch.videos_per_prompt) == ([0, 0, 1, 1], [1, 0, 2, 0])
        assert [[info.indices[-1] for info in infos] for infos in batch.frames] == [[3], [], [1, 5], []]
        alone = [collate(processor, item) for item in samples]
        for row, single in enumerate(alone):
            length = single.input_ids.shape[1]
            assert batch.attention_mask[row].tolist() == [0] * (batch.input_ids.shape[1] - length) + [1] * length
            assert batch.input_ids[row, -length:].tolist() == single.input_ids[0].tolist()
            assert (batch.input_ids[row, :-length] == processor.tokenizer.pad_token_id).all()
        for name in ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "seconds_per_grid"):
            parts = [value for single in alone if (value := getattr(single, name)) is not None]
            assert torch.equal(getattr(batch, name), torch.cat(parts)), name

    def test_bad_samples_are_left_out_and_listed(self, qwen2_5):
        bad = BadSample(sample().record, "broken")
        batch = collate(qwen2_5, bad, sample("Words.", id="2"))
        assert [record.id for record in batch.records] == ["2"] and batch.bad == [bad]
        batch = collate(qwen2_5, bad)
        assert len(batch) == 0 and len(batch.on("cpu").bad) == 1
        assert batch.input_ids.shape == batch.attention_mask.shape == (0, 0)

    def test_accelerate_leaves_prompts_in_the_memory_of_the_host(self, qwen2_5):
        """Else the device would hold the pixels of all micro-batches that a step has drawn."""
        drawn = {"prompts": collate(qwen2_5, sample("Words.")), "target_ids": torch.zeros(1, 2)}
        moved = send_to_device(drawn, torch.device("meta"))
        assert moved["target_ids"].is_meta and not moved["prompts"].input_ids.is_meta
        assert moved["prompts"].on("meta").input_ids.is_meta

    def test_prompts_of_thinking_checkpoints_end_inside_a_think_block(self, qwen2_5):
        assert collate(qwen2_5, sample("Hi."), sample("<think>")).opened_think == [False, False]
        thinking = make_processor("qwen2_5_vl")
        thinking.chat_template += "{%- if add_generation_prompt -%}<think>\n{% endif -%}"
        assert collate(thinking, sample("Hi."), sample("Why?")).opened_think == [True, True]


class TestLongPrompts:
    def test_an_error_names_record_length_and_remedy(self, qwen2_5):
        item = sample("<video> what?", [clip(8, 480, 640)], id="7")
        length = collate(qwen2_5, item).input_ids.shape[1]
        assert len(collate(qwen2_5, item, max_prompt_length=length)) == 1
        # 8 frames of 112 x 168 pixels: 4 pairs of 8 x 12 patches, merged by 4
        message = rf"d\[0\] \(id 7\): the prompt has {length} tokens, 96 of them vision, .*video_max_frame_pixels"
        with pytest.raises(ValueError, match=message):
            collate(qwen2_5, item, max_prompt_length=length - 1)
