"""The folder of an evaluation, written and read back."""

import hashlib
import json

import pytest

from qwenvl.runlog import RunLogError
from qwenvl.runlog.evaluation import AS_IT_IS, EvaluationLog, SampleKey, hash_of, read_evaluation, read_samples
from tests.evaluate.made import sample


def test_what_is_written_is_read_back(tmp_path):
    log = EvaluationLog(tmp_path / "new")
    log.begin({"models": []})
    samples = [sample(), sample(1, "blank", 2, doc=None, total=None)]
    log.log(samples)
    assert list(read_samples(log.folder).values()) == samples
    assert read_evaluation(log.folder) == {"format": 1, "models": []}
    log.write({"models": ["a"], "ended": "now"})
    assert read_evaluation(log.folder)["ended"] == "now"


def test_rows_have_the_keys_of_lmms_eval():
    row = sample().row()
    assert {"doc_id", "doc", "target", "resps", "filtered_resps", "doc_hash"} <= set(row)
    assert (row["resps"], row["filtered_resps"]) == ([["so <answer>(1) lid</answer>"]], ["(1) lid"])
    # As lmms-eval takes it: SHA-256 of the row as JSON with two blanks of indentation.
    as_json = '{\n  "a": "é"\n}'
    assert hash_of({"a": "é"}) == hashlib.sha256(as_json.encode()).hexdigest()


def test_lines_of_several_processes_are_one_file_at_the_end(tmp_path):
    logs = [EvaluationLog(tmp_path, process) for process in range(3)]
    for n, log in enumerate(logs):
        log.begin({"by": n})
        log.log([sample(n)])
    assert read_evaluation(tmp_path)["by"] == 0  # only the first process writes it
    assert {path.name for path in tmp_path.glob("samples*")} == {"samples.jsonl", "samples-1.jsonl", "samples-2.jsonl"}
    found = read_samples(tmp_path)
    assert set(found) == {SampleKey("base", AS_IT_IS, n, 0) for n in range(3)}
    logs[0].join(found[key] for key in sorted(found, key=lambda key: -key.doc_id))
    assert [path.name for path in tmp_path.glob("samples*")] == ["samples.jsonl"]
    assert [each.doc_id for each in read_samples(tmp_path).values()] == [2, 1, 0]


def test_a_cut_line_is_dropped_and_what_comes_twice_is_there_once(tmp_path):
    log = EvaluationLog(tmp_path)
    log.begin({})
    log.log([sample(0), sample(1)])
    path = tmp_path / "samples.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert [key.doc_id for key in read_samples(tmp_path)] == [0]
    again = EvaluationLog(tmp_path)
    again.begin({})
    again.log([sample(0, tokens=8), sample(1)])
    assert [(key.doc_id, each.tokens) for key, each in read_samples(tmp_path).items()] == [(0, 8), (1, 7)]


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", r"samples\.jsonl:2: not JSON"), ('{"model": "m"}', r"samples\.jsonl:2: not a sample: KeyError 'clips'")],
)
def test_a_line_that_is_no_sample_is_an_error_with_its_place(tmp_path, line, message):
    log = EvaluationLog(tmp_path)
    log.begin({})
    log.log([sample()])
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunLogError, match=message):
        read_samples(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file; is .* the output_dir of an evalua"),
        ("{", "not JSON"),
        ('{"format": 9}', "another version"),
    ],
)
def test_a_folder_of_none(tmp_path, text, message):
    if text is not None:
        (tmp_path / "evaluation.json").write_text(text)
    with pytest.raises(RunLogError, match=message):
        read_evaluation(tmp_path)


def test_numbers_that_are_not_finite_are_words_that_json_can_hold(tmp_path):
    log = EvaluationLog(tmp_path)
    log.begin({"value": float("nan")})
    assert json.loads((tmp_path / "evaluation.json").read_text())["value"] == "NaN"
