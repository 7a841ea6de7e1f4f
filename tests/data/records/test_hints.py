import pytest

from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.hints import record_hints
from qwenvl.data.records.parse import ReadOptions, parse_columns
from qwenvl.data.records.record_file import open_records


def hints(write_rows, row):
    path = write_rows([row], "a.json")
    (record,) = open_records(DatasetSource("a", path, path.parent), seed=0)
    return [tuple(hint) for hint in record_hints(record)]


def test_keys_of_meta_that_say_nothing_here(write_rows, make_row):
    clips = {"prompt": "<video><video>", "video": ["a.mp4", "b.mp4"]}
    metas = [{"fps": 25, "max_frames": 4}, {"note": "x", "fps": 5}]
    ((kind, message),) = hints(write_rows, make_row(**clips, meta=metas))
    assert kind == "unknown key in meta"
    assert message.startswith(
        "meta has fps, note, which change no frames and are left to the rewards; known are frame_c"
    )
    assert hints(write_rows, make_row(prompt="text alone", meta={"note": "x"})) == []


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"A": "a cat", "B": "a dog"}, "the options in the columns A, B are not in the prompt"),
        ({"options": ["a cat", "a dog"]}, "the options in the column options are not in the prompt"),
        ({"choices": {"A": "a cat", "B": "a dog"}}, "the options in the column choices are not in the prompt"),
        ({"A": "four legs", "B": "two legs"}, None),  # which the prompt shows
        ({"options": ["four legs", "two legs"]}, None),
        ({"A": "a cat"}, None),  # one column of a letter is no list of options
        ({"options": "x"}, None),
    ],
)
def test_options_that_no_prompt_shows(write_rows, make_row, columns, told):
    found = hints(write_rows, make_row(prompt="Which? A. four legs B. two legs", **columns))
    assert [message[: len(told or "")] for _, message in found] == ([told] if told else [])


def test_the_flag_that_writes_options_into_the_prompt_does(tmp_path, write_rows):
    row = {"prompt": "Which?", "solution": "A", "A": "a cat", "B": "a dog"}
    ((_, message),) = hints(write_rows, row)
    flags = message.partition("choose; ")[2].split()
    assert flags[:4] == ["--columns", "prompt=question,solution=answer", "--format", "question-answer"]
    options = ReadOptions(columns=parse_columns(flags[1]), format=flags[3])
    (record,) = open_records(DatasetSource("a", tmp_path / "a.json", tmp_path), seed=0, options=options)
    assert "A. a cat\nB. a dog" in record.messages[0].text
    assert list(record_hints(record)) == []
