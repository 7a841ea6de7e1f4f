"""The console command: what it does not know, it gives the near names of. Its help may be read in part."""

import os
import signal
import subprocess
import sys

from qwenvl.cli import COMMANDS, main


def test_a_misspelt_command_is_told_the_near_ones_or_all(capsys):
    for typed, near in (("trian", "; did you mean train?"), ("prevew", "; did you mean preview?"), ("xyz", "")):
        assert main([typed]) == 2
        printed = capsys.readouterr().err
        assert printed.startswith(f"qwenvl: unknown command {typed!r}{near}\n")
        assert all(name in printed for name in COMMANDS)


def test_the_help_of_every_command_is_printed_without_torch():
    code = (
        "import sys\nfrom qwenvl.cli import COMMANDS, main\n"
        "for command in COMMANDS.keys() - {'warmup', 'preview'}:\n"
        "    try:\n        main([command, '--help'])\n    except SystemExit as ended:\n        assert not ended.code\n"
        "    assert not {'torch', 'transformers'} & set(sys.modules), command\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert shown.stdout.count("usage: ") == len(COMMANDS) - 2 and shown.stderr == ""


def test_help_that_nobody_reads_to_its_end_ends_quietly():
    """``| head`` closes the pipe, here before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    call = [sys.executable, "-m", "qwenvl", "train", "--help"]
    ended = subprocess.run(call, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, "")
