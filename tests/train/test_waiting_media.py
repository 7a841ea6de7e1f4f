"""Large media that wait for their turn in files: the same training, to the last bit, wherever they wait."""

import pytest
import torch

from qwenvl.model import waiting_media
from qwenvl.model.waiting_media import MEDIA, _map_of
from tests.train.conftest import letters

SEVERAL = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2, "max_steps": 2}


def media_of(holders) -> list[torch.Tensor]:
    return [value for each in holders for name in MEDIA if (value := getattr(each, name)) is not None]


def sometimes(completions, **columns):
    """A reward that is equal within some groups: whether a text has many letters."""
    return [float(share > 0.5) for share in letters(completions)]


@pytest.mark.parametrize(
    "settings",
    [
        {"rollout_token_budget": 1, "advantage_estimator": "grpo(kl_in_reward=True)"},
        {"shared_prefix": "off", "rollout_token_budget": 200},
        {"num_iterations": 2, "max_steps": 4, "temporal_contrast": True},
        {"filter_groups": True, "rollout_token_budget": 100, "check_parity": "every"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_training_is_the_same_to_the_last_bit(make_trainer, tmp_path, monkeypatch, settings):
    def trained(name):
        functions = (sometimes,) if "filter_groups" in settings else (letters,)
        trainer = make_trainer(output_dir=str(tmp_path / name), functions=functions, **{**SEVERAL, **settings})
        trainer.train()
        return trainer

    in_memory = trained("in memory")
    assert not any(_map_of(each) for each in media_of(in_memory.queue.present))
    monkeypatch.setattr(waiting_media, "LARGE", 0)
    waiting = trained("waiting")
    experiences = waiting.step.experiences
    drawn, encoded = media_of(waiting.queue.present), media_of(each.prompts for each in experiences)
    assert drawn and encoded and all(map(_map_of, [*drawn, *encoded]))
    assert not media_of(each.batch for each in experiences)
    weights = dict(in_memory.model.named_parameters())
    for name, parameter in waiting.model.named_parameters():
        assert torch.equal(parameter, weights[name]), name


def test_one_micro_batch_keeps_its_features_and_no_pixels(make_trainer, monkeypatch):
    monkeypatch.setattr(waiting_media, "LARGE", 0)
    trainer = make_trainer(per_device_train_batch_size=4, max_steps=1)
    trainer.train()
    assert all(map(_map_of, media_of(trainer.queue.present)))
    encoded = media_of(each.prompts for each in trainer.step.experiences)
    assert encoded and not any(map(_map_of, encoded))


def test_a_resumed_run_and_a_whole_one_end_alike(whole_and_resumed, monkeypatch):
    monkeypatch.setattr(waiting_media, "LARGE", 0)
    whole_and_resumed(killed=2, resumed_from=1, save_strategy="steps", save_steps=1, **SEVERAL)
