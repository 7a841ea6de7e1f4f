"""The lines of a run before its first step, and the lines of libraries that it suppresses."""

import sys
import warnings

from qwenvl.console import say, settle_output, show, shows_bars


def test_only_the_first_process_speaks(monkeypatch, capsys):
    say("one")
    monkeypatch.setenv("RANK", "1")
    say("two")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "one\n")


def test_no_text_steers_a_terminal(capsys):
    """What is shown may be the completion of a model, or the name of a file."""
    show("one\r\n\ttwo\x1b]0;owned\x07 \x9b2J \u202egpj.a \udcff Ω 日")
    say("\x1b[2Jthree")
    shown = capsys.readouterr()
    assert shown.out == "one\n\ttwo\ufffd]0;owned\ufffd \ufffd2J \ufffdgpj.a \ufffd Ω 日\n"
    assert shown.err == "\ufffd[2Jthree\n"


def test_warnings_that_are_no_news_are_silenced():
    with warnings.catch_warnings(record=True) as told:
        settle_output()
        of_checkpointing = ("is_gradient_checkpointing", "gradient_checkpointing_enable")
        of_torch = ("torch.distributed.all_gather_into_tensor", "torch.distributed.reduce_scatter_tensor")
        for deprecated in ("broadcast_buffers", *of_checkpointing, *of_torch, "sync"):
            warnings.warn(f"`{deprecated}` is deprecated. Use another.", FutureWarning, 1)
    assert [str(each.message) for each in told] == ["`sync` is deprecated. Use another."]


def test_a_terminal_gets_our_bars_and_no_others(monkeypatch):
    from transformers.utils import logging as transformers_logging

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    transformers_logging.enable_progress_bar()
    try:
        settle_output()
        assert shows_bars() and not transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.enable_progress_bar()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert not shows_bars()
