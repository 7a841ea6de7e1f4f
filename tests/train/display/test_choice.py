"""Which display the flags and the terminal come to."""

import sys
from types import SimpleNamespace

import pytest

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.train.display.choice import display_of


@pytest.mark.parametrize(
    ("asked", "silent", "terminal", "kind"),
    [
        (None, False, "xterm", "rich"),
        (None, False, "dumb", "plain"),
        (None, False, None, "plain"),
        (None, True, "xterm", "none"),
        ("rich", False, None, "plain"),
        ("bar", False, None, "plain"),
        ("bar", False, "xterm", "bar"),
        ("bar", False, "dumb", "bar"),
        ("plain", False, "xterm", "plain"),
        ("none", False, "xterm", "none"),
        ("none", False, None, "none"),
    ],
)
def test_the_display(asked, silent, terminal, kind, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal is not None, raising=False)
    monkeypatch.setenv("TERM", terminal or "xterm")
    assert display_of(SimpleNamespace(display=asked, disable_tqdm=silent)) == kind


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"display": "bar", "disable_tqdm": True}, "--display cannot be used with --disable_tqdm"),
        ({"display": "none", "log_completions_every": 5}, "cannot be used with --display none"),
        ({"disable_tqdm": True, "log_completions_every": 5}, "cannot be used with --disable_tqdm"),
        ({"log_completions_every": -1}, "--log_completions_every must be at least 0"),
    ],
)
def test_what_has_no_effect_is_refused(settings, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        GRPOConfig(str(tmp_path), use_cpu=True, **settings)
