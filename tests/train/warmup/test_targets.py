"""The targets of a warm-up: the text of each, and its tokens beside the prompt."""

import pytest
from transformers import AutoProcessor

from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.data.options import PromptOptions
from qwenvl.rewards import build_rubric, reward_columns
from qwenvl.train.warmup.targets import SolutionTargets, TargetCollator, shown_targets
from qwenvl.types import Record

TEMPLATE = "<think>{thinking}</think> <answer>{solution}</answer>"


def record(solution: str, **fields) -> Record:
    return Record("a", (), solution, (), (), (), fields, "data.json[3]")


@pytest.mark.parametrize(
    ("template", "solution", "thinking", "target"),
    [
        (None, "<answer>7</answer>", None, "<answer>7</answer>"),
        (None, " 7\n", None, "<answer>7</answer>"),
        (None, "7", "3 + 4", "<think>3 + 4</think><answer>7</answer>"),
        (None, "<answer>7</answer>", "3 + 4", "<think>3 + 4</think><answer>7</answer>"),
        (None, "<think>so</think> <answer>7</answer>", "3 + 4", "<think>so</think> <answer>7</answer>"),
        (None, "<think>so</think> 7", None, "<think>so</think><answer>7</answer>"),
        (None, "so</think> 7", None, "<think>so</think><answer>7</answer>"),
        (None, "so</think><answer>7</answer>", "3 + 4", "<think>so</think><answer>7</answer>"),
        (None, "7", "  ", "<answer>7</answer>"),
        (None, "7", "<think>\n3 + 4</think>\n", "<think>\n3 + 4</think><answer>7</answer>"),
        (TEMPLATE, "7", "3 + 4", "<think>3 + 4</think> <answer>7</answer>"),
        (TEMPLATE, "<think>so</think> <answer>7</answer>", None, "<think>so</think> <answer>7</answer>"),
        ("Answer: {solution}", "so <answer>7</answer>", None, "Answer: 7"),
        ("Answer: {solution}", "<think>so</think> 7", None, "Answer: 7"),
        ("{thinking}|{solution}", "{thinking}", "{solution}", "{solution}|{thinking}"),
    ],
)
def test_a_solution_is_taught_in_the_form_that_rewards_read_or_by_a_template(template, solution, thinking, target):
    targets, row = SolutionTargets(template), record(solution, thinking=thinking)
    assert targets.check_record(row) is None
    assert targets.of(row, opened_think=False) == [(target,)]


def test_a_target_scores_all_of_its_rewards():
    rows = [record("7", thinking="3 + 4"), record("<answer>(1) take</answer>", thinking="I look.")]
    texts = [text for row in rows for (text,) in SolutionTargets().of(row, opened_think=False)]
    rubric = build_rubric(["format", "strict_format", "exact_match"], None)
    assert rubric.score(texts, reward_columns(rows, 1)).components == [[1.0, 1.0]] * 3
    rubric.close()


def test_a_record_that_cannot_be_taught_is_named():
    assert "names {thinking}, and the record has neither" in SolutionTargets(TEMPLATE).check_record(record("7"))
    with pytest.raises(RecordError, match=r"^data.json\[3\]: `thinking`: expected text, got number 5$"):
        SolutionTargets().of(record("7", thinking=5), opened_think=False)
    problem = SolutionTargets().check_record(record("7", thinking="so it is.<|im_end|>"))
    assert problem.startswith("`thinking`: it holds '<|im_end|>'")


@pytest.mark.parametrize(
    ("solution", "thinking", "problem"),
    [
        ("7", "I see <answer>8</answer> no", "`thinking` has a <answer> in it"),
        ("7", "<think>so</think> and <think>so</think>", "`thinking` has a <think> in it"),
        ("<think>so <answer>8</answer></think><answer>7", None, "`thinking` has a <answer> in it"),
        ("<think>so", None, "the solution has 1 <think> and 0 </think>"),
    ],
)
def test_tags_that_rewards_would_take_for_those_of_the_target_are_refused(solution, thinking, problem):
    assert SolutionTargets().check_record(record(solution, thinking=thinking)).startswith(problem)


@pytest.mark.parametrize(
    "solution", ["<think>It is seen.</think>", "<answer></answer>", "<answer> </answer>", "so</think> "]
)
@pytest.mark.parametrize("template", [None, "It is {solution}."])
def test_a_solution_without_an_answer_is_refused(solution, template):
    problem = SolutionTargets(template).check_record(record(solution))
    assert problem.startswith("the solution has an empty answer block, or nothing but thinking")


def test_where_the_prompt_opens_the_think_block_the_target_goes_on_in_it():
    inside = {"opened_think": True}
    assert SolutionTargets().of(record("7", thinking="3 + 4"), **inside) == [("3 + 4</think><answer>7</answer>",)]
    assert SolutionTargets().of(record("so</think>7"), **inside) == [("so</think><answer>7</answer>",)]
    closing = SolutionTargets("</think><answer>{solution}</answer>")
    assert closing.of(record("7"), **inside) == [("</think><answer>7</answer>",)]
    with pytest.raises(RecordError, match=r"data.json\[3\]: the prompt ends inside a think block, and the target has"):
        SolutionTargets().of(record("7"), **inside)


class TwoForTheFirst:
    """Two targets for the first clip, none for the second, one for all others."""

    def of(self, record, opened_think):
        return {"clip-0": [("one",), ("two and more",)], "clip-1": []}.get(record.id, [("three",)])


def test_targets_stand_beside_their_prompts_and_end_with_the_end_token(tiny_checkpoint, sop_data):
    processor = AutoProcessor.from_pretrained(tiny_checkpoint())
    collator = TargetCollator(processor, PromptOptions(), TwoForTheFirst())
    dataset = load_dataset(str(sop_data), base_interval=0.5)
    inputs = collator([dataset[0], None, dataset[1], dataset[6]])
    ids, mask = inputs["target_ids"], inputs["target_mask"]
    assert len(inputs["prompts"]) == 3 and len(ids) == 3 * 2
    texts = [processor.tokenizer.decode(row[own]) for row, own in zip(ids, mask, strict=True)]
    assert texts == ["one<|im_end|>", "two and more<|im_end|>", "", "", "three<|im_end|>", ""]
    assert (ids[~mask] == processor.tokenizer.pad_token_id).all()
    empty = collator([None])
    assert empty["target_ids"].shape == empty["target_mask"].shape == (0, 0)


def test_the_first_targets_are_shown_as_the_model_reads_them(tiny_checkpoint, sop_data):
    processor = AutoProcessor.from_pretrained(tiny_checkpoint())
    collator = TargetCollator(processor, PromptOptions(), SolutionTargets())
    [line] = shown_targets(load_dataset(str(sop_data)), collator, 1)
    tokens = len(processor.tokenizer("<answer>(1) step</answer>")["input_ids"]) + 1
    assert line == f"{sop_data}[0] (id clip-0): {tokens} tokens: '<answer>(1) step</answer><|im_end|>'"


def test_a_target_ends_as_the_template_ends_a_turn_whatever_the_tokenizer_calls_its_end(tiny_checkpoint, sop_data):
    processor = AutoProcessor.from_pretrained(tiny_checkpoint("qwen3_vl"))
    processor.tokenizer.eos_token = "<|endoftext|>"
    collator = TargetCollator(processor, PromptOptions(), SolutionTargets())
    ids = collator([load_dataset(str(sop_data))[0]])["target_ids"][0].tolist()
    assert processor.tokenizer.convert_ids_to_tokens(ids[-1]) == "<|im_end|>"
