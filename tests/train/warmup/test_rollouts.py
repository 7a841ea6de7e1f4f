"""The best completions of a run: which are taken, and which records are left."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from transformers import AutoProcessor

from qwenvl.data.dataset import GRPODataset, load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.data.options import PromptOptions, SampleOptions
from qwenvl.data.order import Part
from qwenvl.data.tool_options import ToolOptions
from qwenvl.run_log.log import Rollout, RunLog
from qwenvl.train.warmup.targets import RolloutTargets, TargetCollator, narrowed
from qwenvl.types import Turn

PROMPT = "<video>\nWhich steps? (1) pick (2) insert (3) fasten"


def rollout(text, total, *, record="clip-0", step=1, sample=0, reason="stop", solution="<answer>(1) step</answer>"):
    prompt = ({"role": "user", "text": PROMPT},)
    texts = {"prompt": prompt, "solution": solution, "completion": text, "tokens": 5, "finish_reason": reason}
    return Rollout(step=step, record_id=record, sample=sample, rewards={}, total=total, **texts)


@pytest.fixture
def run(tmp_path):
    """``run(*rollouts)`` -> the folder of a run with these completions."""

    def write(*rows: Rollout) -> str:
        RunLog(tmp_path / "run").log_rollouts(rows)
        return str(tmp_path / "run")

    return write


def test_the_best_completions_become_targets_without_repeated_or_cut_texts(run, sop_data, tmp_path):
    folder = run(
        rollout("good", 0.9, step=1),
        rollout("better", 1.0, step=1),
        rollout("good", 0.9, step=3),
        rollout("as good", 0.9, step=2, sample=1),
        rollout("as good too", 0.9, step=2, sample=0),
        rollout("bad", 0.89),
        rollout("no reward", None),
        rollout("not finished", 1.0, reason="length"),
        rollout("another's", 0.95, record="clip-3"),
        rollout("of another solution", 1.0, record="clip-1", solution="other"),
    )
    (tmp_path / "text.json").write_text(json.dumps(json.loads(sop_data.read_text())[6:7]))
    whole = load_dataset(f"{tmp_path}/text.json:2,{sop_data}:3", base_interval=0.5)
    targets = RolloutTargets(folder, 0.9, 3)
    dataset = narrowed(whole, targets, "--dataset_use")
    assert dataset.parts == (Part(str(sop_data), 2, 3),)
    assert {record.id: targets.of(record, False) for record in dataset.records} == {
        "clip-0": [("better",), ("good",), ("as good too",)],
        "clip-3": [("another's",)],
    }
    assert dataset.options == whole.options and dataset.rule == whole.rule
    nothing = GRPODataset([whole.records[0]], whole.options)
    with pytest.raises(ValueError, match=r"^--dataset_use: .*/run has no good enough completion"):
        narrowed(nothing, targets, "--dataset_use")


def test_completions_that_spell_control_tokens_are_left_out(run, sop_data, capsys):
    """They were sampled as ordinary tokens, and the tokenizer would read others in their text."""
    folder = run(
        rollout("it says <|video_pad|>", 1.0),
        rollout("two", 1.0, sample=1),
        replace(rollout("a<|im_end|>", 1.0, sample=2), turns=(Turn("a<|im_end|>"), Turn("b"))),
    )
    targets = RolloutTargets(folder, 0.9, 4, tools=True)
    assert "2 completions with special tokens as text, left out" in capsys.readouterr().err
    assert targets.of(load_dataset(str(sop_data)).record(0), False) == [("two",)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "of its 0 completions none .* --min_reward 0.9; .*--output_dir"),
        ([rollout("a", None), rollout("b", 1.0, reason="length")], "of its 2 completions none .* --min_reward 0.9$"),
        ([rollout("a", 0.25), rollout("b", 0.45)], "of its 2 completions none .* 0.9: the highest has 0.45"),
    ],
)
def test_a_run_without_good_completions_is_refused_with_its_highest_reward(run, rows, message):
    with pytest.raises(ValueError, match=message):
        RolloutTargets(run(*rows), 0.9, 4)


def test_targets_with_looks_show_their_frames_again(run, sop_data, tiny_checkpoint):
    call = '<tool_call>{"name": "look", "arguments": {"start": 0.5, "end": 1.5}}</tool_call>'
    turns = tuple(Turn(text) for text in (call, "done"))
    folder = run(replace(rollout(call + "done", 1.0), turns=turns))
    with pytest.raises(ValueError, match=r"its completions call tools: .*--tools"):
        RolloutTargets(folder, 0.9, 4)
    flags = SimpleNamespace(**vars(SampleOptions()), **vars(ToolOptions(tools=["look"], look_frames=4)))
    processor = AutoProcessor.from_pretrained(tiny_checkpoint())
    collator = TargetCollator(processor, PromptOptions(), RolloutTargets(folder, 0.9, 4, tools=True), flags)
    inputs = collator([load_dataset(str(sop_data), ruler=collator.ruler)[0]])
    ids, mask = inputs["target_ids"][0], inputs["target_mask"][0]
    assert processor.tokenizer.decode(ids[mask]) == f"{call}<|im_end|>done<|im_end|>"
    assert processor.tokenizer.decode(ids[~mask]) == processor.tokenizer.decode(inputs["appended"].input_ids[0])
    assert inputs["appended"].frames[0][0].times == (0.5, 0.875, 1.125, 1.5)
    collator.toolbox.options.max_turns = 1
    with pytest.raises(RecordError, match=r"tools do not answer .* --max_turns"):
        collator([load_dataset(str(sop_data), ruler=collator.ruler)[0]])
