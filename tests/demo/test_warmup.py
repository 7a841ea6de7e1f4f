"""The warm-up teaches what its targets say, by the cross-entropy that anyone would compute."""

from __future__ import annotations

import pytest
import torch

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.demo.clips import ClipSettings, make_clips, tokenizer_texts
from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.demo.warmup import WarmupSettings, warm_up
from qwenvl.model.inputs import InputBuilder
from qwenvl.model.positions import position_rule
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import LocalEngine


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "data"
    make_clips(folder, ClipSettings(train=15, heldout=1, warmup=120, dropped=0.0, warmup_pairs=1), processes=1)
    return load_dataset("demo_warmup", catalog_path=folder / "datasets.yaml")


@pytest.fixture()
def parts():
    processor = make_processor(texts=tokenizer_texts())
    return make_model("qwen2_5_vl", processor, initializer_range=0.08), processor


def test_first_loss_is_the_cross_entropy_of_the_targets(dataset, parts):
    model, processor = parts
    samples = [dataset[i] for i in range(4)]
    batch = GRPOCollator(processor, video_min_frame_pixels=3136, video_max_frame_pixels=3136)(samples)["prompts"]
    prompts = InputBuilder.of(position_rule(model.config), processor)(batch)
    total, count = 0.0, 0
    for p, sample in enumerate(samples):
        row = prompts.select([p])
        target = torch.tensor(
            [[*processor.tokenizer(sample.record.solution)["input_ids"], model.config.text_config.eos_token_id]]
        )
        n = target.shape[1]
        after = row.position_ids.amax() + 1 + torch.arange(n).expand(3, 1, -1)
        with torch.no_grad():
            logits = model(
                input_ids=torch.cat([row.input_ids, target], 1),
                position_ids=torch.cat([row.position_ids, after], 2),
                **row.vision(),
            ).logits[0, -n - 1 : -1]
        total += torch.nn.functional.cross_entropy(logits, target[0], reduction="sum").item()
        count += n
    losses = []
    few = torch.utils.data.Subset(dataset, range(4))
    warm_up(model, processor, few, WarmupSettings(batch_size=4, workers=0), lambda *seen: losses.append(seen))
    assert losses == [(1, 1, pytest.approx(total / count, rel=1e-4))]


def test_a_model_learns_to_say_what_it_is_told(dataset, parts):
    """One pair of steps, told rightly every time: 30 steps later the greedy answer is that pair."""
    model, processor = parts
    losses = []
    settings = WarmupSettings(batch_size=4, learning_rate=5e-3, stop_below=0.0, workers=0)
    warm_up(model, processor, dataset, settings, lambda step, steps, loss: losses.append(loss))
    assert len(losses) == 30
    assert losses[-1] < 0.3 < 3 < losses[0]
    batch = GRPOCollator(processor, video_min_frame_pixels=3136, video_max_frame_pixels=3136)([dataset[0]])["prompts"]
    prompts = InputBuilder.of(position_rule(model.config), processor)(batch)
    greedy = SamplingParams(max_new_tokens=40, temperature=0)
    text = LocalEngine(processor.tokenizer, model).draw(model, prompts, 1, greedy, seed=0).texts[0]
    assert text.endswith(dataset.records[0].solution.removeprefix("<think>I look at each step.</think> "))


def test_it_ends_when_the_mean_of_ten_losses_is_low_enough(dataset, parts):
    losses = []
    settings = WarmupSettings(batch_size=4, learning_rate=5e-3, stop_below=2.0, workers=0)
    warm_up(*parts, dataset, settings, lambda step, steps, loss: losses.append(loss))
    assert 10 <= len(losses) < 30
    assert sum(losses[-10:]) / 10 < 2.0
    assert len(losses) == 10 or sum(losses[-11:-1]) / 10 >= 2.0


def test_too_few_records_are_refused(dataset, parts):
    with pytest.raises(ValueError, match="needs 500 records, got 120"):
        warm_up(*parts, dataset, WarmupSettings(batch_size=500))
