"""The console command: what it does not know, it gives the near names of. Its help may be read in part."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qwenvl.cli import COMMANDS, main


def test_a_misspelt_command_is_answered_with_the_near_names_or_all(capsys):
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


@pytest.mark.parametrize("module", ["qwenvl", "qwenvl.cli"])
def test_both_modules_are_the_command(module):
    ended = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout.startswith("qwenvl ")


def test_help_that_nobody_reads_to_its_end_ends_quietly():
    """``| head`` closes the pipe, here before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    call = [sys.executable, "-m", "qwenvl", "train", "--help"]
    ended = subprocess.run(call, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, "")


OFFLINE = "org/none: no such folder, not in the cache, and HF_HUB_OFFLINE is set"
# Each with what it says. FILE is a file, EMPTY an empty folder, MODEL a folder with weights.
WITHOUT_TORCH = (
    ("train --model_name_or_path org/none --dataset_use example", OFFLINE),
    ("warmup --model_name_or_path org/none --dataset_use example", OFFLINE),
    ("probe org/none example", OFFLINE),
    ("evaluate org/none example", OFFLINE),
    ("try org/none FILE Which?", OFFLINE),
    ("label org/none example", OFFLINE),
    ("serve org/none example --check http://127.0.0.1:9", OFFLINE),
    ("preview example --model org/none", OFFLINE),
    ("data check example --model org/none", OFFLINE),
    ("train --model_name_or_path MODEL --dataset_use example --reward_funcs acuracy", "did you mean accuracy"),
    ("probe MODEL example --reward_funcs acuracy", "did you mean accuracy"),
    ("evaluate MODEL example --reward_funcs acuracy", "did you mean accuracy"),
    ("evaluate MODEL exampel", "did you mean example"),
    ("try MODEL gone.mp4 Which?", "gone.mp4: no such file"),
    ("try MODEL Which? FILE", "in this order"),
    ("try FILE MODEL Which?", "FILE: a file; expected the folder of a model"),
    ("evaluate FILE example", "FILE: a file; expected the folder of a model"),
    ("preview example --model FILE", "FILE: a file; expected the folder of a model"),
    ("label EMPTY example", "EMPTY: no weights in it"),
    ("merge FILE --out whole", "FILE: a file; expected the folder of an adapter"),
    ("merge EMPTY --out whole", "EMPTY: no adapter in it"),
    ("data check example --max_prompt_length 9", "give --model"),
    ("serve MODEL", "pip install 'qwenvl[serve]'"),
)


def test_wrong_commands_end_before_torch_is_loaded(tmp_path):
    """Torch is a module that ends the process, and the packages of a server are not installed."""
    places = {name: str(tmp_path / name.lower()) for name in ("FILE", "EMPTY", "MODEL")}
    Path(places["FILE"]).write_bytes(b"\0")
    Path(places["EMPTY"]).mkdir()
    Path(places["MODEL"]).mkdir()
    Path(places["MODEL"], "model.safetensors").touch()
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "torch.py").write_text("raise SystemExit('torch was loaded')")
    script = (
        "import json, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "sys.modules['uvicorn'] = None\n"
        "from qwenvl.cli import main\n"
        "for words in json.loads(sys.argv[2]):\n"
        "    try:\n"
        "        status = main(words)\n"
        "    except SystemExit as end:\n"
        "        status = end.code\n"
        "    print('status', status, file=sys.stderr, flush=True)\n"
    )
    commands = [[places.get(word, word) for word in command.split()] for command, _ in WITHOUT_TORCH]
    modules = str(tmp_path / "modules")
    argv = [sys.executable, "-c", script, modules, json.dumps(commands)]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=120)
    said = ended.stderr.split("status ")
    assert len(said) == len(commands) + 1, ended.stderr
    for number, (command, message) in enumerate(WITHOUT_TORCH):
        for name, place in places.items():
            message = message.replace(name, place)
        assert message in said[number], (command, said[number])
        assert said[number + 1].startswith("2\n"), command


def test_ctrl_c_ends_a_command_with_a_line(monkeypatch, capsys):
    def interrupted(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr("qwenvl.commands.rewards.main", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["rewards"])
    assert ended.value.code == 130 and capsys.readouterr().err == "qwenvl rewards: stopped by Ctrl-C\n"
