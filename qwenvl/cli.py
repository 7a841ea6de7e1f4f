"""The console command ``qwenvl``: one word, then the arguments of what it names."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module, metadata

from qwenvl.console import ends_at_ctrl_c

COMMANDS = {
    "probe": ("qwenvl.commands.probe", "see before training whether a checkpoint could learn from your records"),
    "train": ("qwenvl.commands.train", "train a checkpoint by GRPO on your records"),
    "warmup": ("qwenvl.commands.warmup", "teach a checkpoint the form of an answer before GRPO"),
    "try": ("qwenvl.commands.try_model", "ask a model about a clip: what it sees, what it answers"),
    "label": ("qwenvl.commands.label", "answer a question about many clips: a table, and a page to correct it on"),
    "serve": ("qwenvl.commands.serve", "serve a model to OpenAI clients, with frames and prompts as trained"),
    "merge": ("qwenvl.commands.merge", "fold a LoRA adapter into the weights that it belongs to"),
    "plan": ("qwenvl.commands.plan", "see before training what memory a step takes, and what makes it fit"),
    "data": ("qwenvl.commands.data", "check a data set, convert it, or make one of a folder of clips"),
    "preview": ("qwenvl.commands.preview", "see what the model will see: frames, prompts and solutions"),
    "rewards": ("qwenvl.commands.rewards", "list the reward functions, or score a completion by hand"),
    "report": ("qwenvl.commands.report", "see what became of a run: curves, and every group with its completions"),
    "evaluate": ("qwenvl.commands.evaluate", "see what models are worth on held-out records, and if they look"),
    "demo": ("qwenvl.commands.demo", "watch a tiny model learn to name the steps of assembly videos"),
}
"""Each command, the module whose ``main(argv)`` it runs, and what it does."""


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command that ``argv`` begins with, and return its exit status."""
    command, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    if command in ("-h", "--help"):
        print(usage())
        return 0
    if command == "--version":
        print(f"qwenvl {version()}")
        return 0
    if command not in COMMANDS:
        near = "".join(f"; did you mean {name}?" for name in get_close_matches(command, COMMANDS, n=1))
        print(f"qwenvl: unknown command {command!r}{near}\n\n{usage()}", file=sys.stderr)
        return 2
    if argv is None and {"-h", "--help"} & set(rest):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the end of ``qwenvl train --help | head`` is quiet
    module, _ = COMMANDS[command]
    with ends_at_ctrl_c(f"qwenvl {command}"):  # also while a library is loaded
        return import_module(module).main(rest)


def usage() -> str:
    """The text that ``qwenvl --help`` prints."""
    lines = [f"  {name:<10}{what}" for name, (_, what) in COMMANDS.items()]
    usages = ["usage: qwenvl COMMAND ...", "       qwenvl --version"]
    return "\n".join([*usages, "", *lines, "", "qwenvl COMMAND --help tells more."])


def version() -> str:
    """The version of the installed package."""
    try:
        return metadata.version("qwenvl")
    except metadata.PackageNotFoundError:
        return "of a source folder that is not installed"


if __name__ == "__main__":
    raise SystemExit(main())
