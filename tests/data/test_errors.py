from types import SimpleNamespace

import pytest

from qwenvl.data.errors import BadMediaError, RecordError, kind_of, place_of, told_to_the_user


@pytest.mark.parametrize(
    ("error", "code"),
    [(RecordError("a[1]: bad"), 1), (BadMediaError("a.mp4", "bad"), 1), (OSError("y"), 2)],
)
def test_errors_of_users_are_told_without_a_traceback(error, code, capsys):
    with pytest.raises(SystemExit) as ended, told_to_the_user("qwenvl do"):
        raise error
    assert ended.value.code == code
    assert capsys.readouterr().err == f"qwenvl do: {error}\n"


def test_an_error_of_a_worker_is_told_by_its_message(capsys):
    text = "Caught BadMediaError in DataLoader worker process 0.\nOriginal Traceback ...\n  raise BadMediaError(path)\n"
    with pytest.raises(SystemExit), told_to_the_user("qwenvl do"):
        raise BadMediaError(text + "qwenvl.data.errors.BadMediaError: a.mp4: bad\n")
    assert capsys.readouterr().err == "qwenvl do: a.mp4: bad\n"


def test_a_message_that_quotes_an_error_is_told_whole(capsys):
    with pytest.raises(SystemExit), told_to_the_user("qwenvl do"):
        raise ValueError("a.py: the solution 'ValueError: bad' is wrong")
    assert capsys.readouterr().err == "qwenvl do: a.py: the solution 'ValueError: bad' is wrong\n"


def test_values_are_shown_by_their_json_type():
    assert [kind_of(value) for value in (None, True, 1.5, "a", [1])] == [
        "nothing",
        "boolean true",
        "number 1.5",
        'string "a"',
        "list [1]",
    ]
    assert kind_of("x" * 200) == 'string "' + "x" * 76 + "..."


@pytest.mark.parametrize("kind", [RecordError, BadMediaError])
def test_text_quoted_in_an_error_neither_steers_a_terminal_nor_fills_it(kind):
    text = str(kind("data.json[3]: \x1b[2J\x9b1m" + "x" * 10**6 + ": no such file\n  second line"))
    assert text.startswith("data.json[3]: \ufffd[2J\ufffd1mxxx") and text.endswith("xxx: no such file\n  second line")
    assert len(text) < 1100
    row = SimpleNamespace(where="data.json[3]", id="a\x1b[2J" + "x" * 10**6)
    assert place_of(row) == f"data.json[3] (id a\ufffd[2J{'x' * 72}...)"
