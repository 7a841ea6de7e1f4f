import re

import pytest

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import load_dataset
from qwenvl.train.display.first_look import first_look, size_warnings


def test_a_hint_is_printed_once_with_the_number_of_its_records(write_rows, make_row, capsys):
    rows = [make_row(prompt="<video>Which?", video="a.mp4", meta={"fps": 25}) for _ in range(3)]
    rows.append(make_row(prompt="<video>Which?", video="gone.mp4"))
    dataset = load_dataset(str(path := write_rows(rows)), on_bad_sample="skip")
    capsys.readouterr()
    first_look(dataset, ())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("worth a look: meta has fps")
    assert line.endswith(f"(3 of 4 records looked at, the first is {path}[0])")


def test_keys_that_nothing_reads_and_rows_without_media_are_reported(write_rows, make_row, capsys):
    rows = [make_row(prompt=f"<video>{n}?", video="a.mp4", level=n, line=7) for n in range(3)]
    rows.append(make_row(prompt="Which?", solution=""))
    dataset = load_dataset(str(write_rows(rows)), on_bad_sample="skip")
    capsys.readouterr()
    first_look(dataset, {"line"})
    unreadable, unread = capsys.readouterr().err.splitlines()
    assert unreadable.startswith("left out: 1 of 4 rows")
    assert unread.endswith("level (3 of 3)")
    first_look(dataset, None)
    assert "level" not in capsys.readouterr().err, "a warm-up, after which rewards read other fields"


def test_training_on_text_alone_is_reported(write_rows, make_row, capsys):
    rows = [make_row(prompt="1 + 1?"), make_row(prompt="<video>Which?", video="a.mp4")]
    for chosen, said in ((rows[:1], "no record has a clip or a picture"), (rows, "1 of 2 records without")):
        dataset = load_dataset(str(write_rows(chosen)), on_bad_sample="skip")
        capsys.readouterr()
        first_look(dataset, ())
        assert said in capsys.readouterr().err


def test_times_that_no_reward_reads_are_named(write_rows, make_row, capsys):
    """With the default rewards a timeline of wrong times is right."""
    prompt = "Which, and when?\n(1) take the lid\n(2) insert the fan"
    rows = [make_row(prompt=prompt, solution=f"<answer>0.0-{n}.5 (1)</answer>") for n in range(2)]
    rows.append(make_row(prompt=prompt, solution="<answer>(1)</answer>"))
    dataset = load_dataset(str(write_rows(rows)))
    capsys.readouterr()
    for rewards, is_said in (
        (("format", "accuracy"), True),
        (("accuracy", "segment_f1"), False),
        (("accuracy", "mine"), False),  # which may read them
        ((), False),  # a warm-up
    ):
        first_look(dataset, {"line"}, rewards)
        said = "of 2 of 3 records, and no reward reads their times (format, accuracy)" in capsys.readouterr().err
        assert said == is_said, rewards


class TestSizes:
    """A cost without a use is said before a run begins."""

    @pytest.fixture
    def found(self, write_rows, make_row):
        """``found("a3", "b1", flag=value)``: warnings of training on a0, a1, a2 and evaluating on b0."""

        def warnings(train, evaluation=None, **flags):
            def data_set(name):
                rows = [make_row(prompt=f"{name[0]}{n}?") for n in range(int(name[1:]))]
                return load_dataset(str(write_rows(rows, f"{name}.json")))

            args = GRPOConfig("out", **{"dataset_use": "a.json", "use_cpu": True, **flags})
            return list(size_warnings(args, data_set(train), None if evaluation is None else data_set(evaluation)))

        return warnings

    @pytest.mark.parametrize(
        ("flags", "shown"),
        [
            ({"per_device_train_batch_size": 4}, "3 records .* a step of 4 prompts"),
            ({"gradient_accumulation_steps": 8}, "3 records .* a step of 8 prompts"),
            ({"gradient_accumulation_steps": 3}, None),
            ({"warmup_steps": 30, "num_train_epochs": 2}, "--warmup_steps 30: the run has 6 steps and ends at 20%"),
            ({"warmup_steps": 4, "max_steps": 3, "num_train_epochs": 9}, "--warmup_steps 4: the run has 3 steps"),
            ({"warmup_steps": 5, "num_train_epochs": 2}, None),
            ({"warmup_steps": 0.5, "max_steps": 2}, None),
            ({"dataloader_drop_last": True, "per_device_train_batch_size": 3}, None),
        ],
        ids=str,
    )
    def test_training_data_and_warm_up_that_do_not_fit_the_steps_are_reported(self, found, flags, shown):
        warnings = found("a3", **flags)
        assert len(warnings) == (shown is not None)
        if shown is not None:
            assert re.search(shown, warnings[0])

    def test_a_run_without_a_step_is_an_error(self, found):
        with pytest.raises(ValueError, match=r"--dataloader_drop_last .* 3 records"):
            found("a3", dataloader_drop_last=True, per_device_train_batch_size=4)

    def test_small_evaluations_and_questions_that_are_trained_on_are_reported(self, found):
        assert found("a3", "b2") == []
        (one,) = found("a3", "b1")
        assert "'eval' is of 1 record" in one
        (shared,) = found("a3", "a5")
        assert shared.startswith("3 of 5 questions of the evaluation 'eval' are trained on")
