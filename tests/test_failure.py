"""The error of a run is told once: by the first of its processes that fails."""

import pytest

from qwenvl.failure import has_failed, tell, tells_errors_once


@pytest.fixture
def process(monkeypatch, tmp_path):
    """``process(n)`` makes this one the process n of two, as torchrun does."""

    def become(rank: int) -> None:
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / "error.json"))
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")

    return become


def told(capsys) -> str:
    return capsys.readouterr().err


def test_the_first_process_to_fail_prints_and_repetitions_are_silent(process, capsys):
    process(1)
    assert not has_failed()
    tell("qwenvl train: clip.mp4: cut short\n(two lines)")
    assert told(capsys) == "qwenvl train: clip.mp4: cut short\n(two lines)\n" and has_failed()
    process(0)
    tell("qwenvl train: clip.mp4: cut short\n(two lines)")
    tell("qwenvl train: another process of the run is gone", consequence=True)
    assert told(capsys) == "" and has_failed()
    tell("qwenvl train: part.mp4: no such file\n(two lines)")
    assert told(capsys) == "process 0, after that: qwenvl train: part.mp4: no such file\n"


def test_a_consequence_is_printed_where_no_cause_was(process, capsys):
    process(0)
    tell("another process of the run is gone", consequence=True)
    assert told(capsys) == "another process of the run is gone\n"


def test_a_single_process_prints_every_message(capsys, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    for _ in range(2):
        tell("the same")
    assert told(capsys) == "the same\nthe same\n" and not has_failed()
    with pytest.raises(KeyError), tells_errors_once():
        raise KeyError("passes")


def test_a_traceback_is_printed_once_for_all_processes(process, capsys):
    for rank, error in ((1, ValueError("a bad step")), (0, ValueError("a bad step")), (0, KeyError("other"))):
        process(rank)
        with pytest.raises(SystemExit) as ended, tells_errors_once():
            raise error
        assert ended.value.code == 1
        said = told(capsys)
        if rank == 1:
            assert said.startswith("Traceback (most recent call last):") and said.endswith("ValueError: a bad step\n")
        else:
            assert said == ("process 0, after that: KeyError: 'other'\n" if isinstance(error, KeyError) else "")
