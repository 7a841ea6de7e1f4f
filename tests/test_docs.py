"""The pages tell the truth: every command in them is parsed or run, every link leads somewhere, the code runs."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml

from qwenvl.cli import COMMANDS, main
from qwenvl.commands.data import parser as data_commands
from qwenvl.commands.label import label_request
from qwenvl.commands.merge import make_parser as make_merge_parser
from qwenvl.commands.plan import request_of as settings_of_a_plan
from qwenvl.commands.serve import serve_request
from qwenvl.config.command_line import parse_args, read_command, without_dry_run
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.evaluate.requests import evaluation_request, probe_request, try_request
from qwenvl.vllm_server.__main__ import parse as parse_server
from tests.made_clips import write_clip

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *sorted(ROOT.glob("[A-Z]*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")),
]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#[^)]*)?\)")
# mkdocs: tests/test_site.py runs it.
WITHOUT_CHECK = {"cd", "ffmpeg", "git", "source", "export", "tensorboard", "uv", "mkdocs"}


def text_of(page: Path) -> str:
    """A page. Of a notebook its texts: tests/test_notebook.py runs its code."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@cache
def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language, without their indentation."""
    found = BLOCK.findall(text_of(page))
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, kind, text in found if kind == language]


def commands() -> list:
    """Every command line of every page."""
    lines = [
        (page, line)
        for page in PAGES
        for block in blocks(page, "bash")
        for line in block.replace("\\\n", " ").splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    table = ROOT / "docs" / "commands.md"
    cells = re.findall(r"`((?:qwenvl|bash) [^`]*)`", text_of(table).split("|---|---|")[1].split("\n\n")[0])
    lines += [(table, line.replace("MODEL", "Qwen/Qwen3.5-4B")) for line in cells if "..." not in line]
    return [pytest.param(line, id=f"{page.name}: {line[:60]}") for page, line in lines]


@pytest.fixture
def settings_files(tmp_path, monkeypatch):
    """A working folder with the files that the pages show: YAML blocks whose first line is ``# name.yaml``."""
    for page in PAGES:
        for block in blocks(page, "yaml"):
            if named := re.match(r"# ([\w./-]+\.yaml)\n", block):
                (tmp_path / named[1]).write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", commands())
def test_commands_of_the_pages_are_understood(line, settings_files):
    words = shlex.split(line, comments=True)
    environment = {}
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    check(words, environment)


def check(words: list[str], environment: dict[str, str]) -> None:
    """Fails where a command names a file, subcommand, extra or flag that does not exist."""
    program, *rest = words
    if any(word.endswith("train_grpo.py") for word in words):
        check_training([word.endswith("train_grpo.py") for word in words].index(True), words)
    elif program in ("bash", "sbatch") and any("train_grpo" in word for word in rest):
        at = next(n for n, word in enumerate(rest) if word.endswith((".sh", ".sbatch")))
        assert (ROOT / rest[at]).is_file()
        named = {word.split("=")[0].removeprefix("--") for word in rest[at + 1 :] if word.startswith("--")}
        assert named <= {"config", *(each.name for each in fields(GRPOConfig))}
        assert all(name in (ROOT / "scripts" / "train_grpo.sh").read_text(encoding="utf-8") for name in environment)
    elif program == "bash" and rest[0].endswith("serve_vllm.sh") and "--build" not in rest:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QWENVL_VLLM_TOKEN", "a secret of both sides")
            parse_server(rest[1:])
    elif program == "qwenvl":
        assert rest[0] in COMMANDS
        if rest[0] in READERS and "--help" not in rest:
            READERS[rest[0]](rest[1:])
    elif program == "accelerate" and "--module" in rest:
        check(rest[rest.index("--module") + 1 :], environment)
    elif program in ("bash", "python") and rest[0].endswith((".sh", ".py")):
        assert (ROOT / rest[0]).is_file()
        if program == "python":  # the others hand flags on
            text = (ROOT / rest[0]).read_text(encoding="utf-8")
            flags = {word.split("=")[0] for word in rest[1:] if word.startswith("--")} - {"--help"}
            assert all(flag in text for flag in flags)
    elif program == "python" and rest[:2] == ["-m", "pytest"]:
        assert all((ROOT / word.split("::")[0]).exists() for word in rest[2:] if word.startswith("tests"))
    elif program == "jupyter":
        assert (ROOT / rest[1]).is_file()
    elif program == "pip":
        named = re.findall(r"\[([\w-]+)\]", " ".join(rest))
        assert all(f'"{extra}":' in (ROOT / "setup.py").read_text(encoding="utf-8") for extra in named)
    else:
        assert program in WITHOUT_CHECK, f"no check for {program}: teach tests/test_docs.py one"


def asked(request_of: Callable[[list[str]], object]) -> Callable[[list[str]], object]:
    """Reads a command, in a working folder where its model and its clips are there."""

    def check(words: list[str]) -> None:
        clips = [word for word in words if word.endswith(".mp4")]
        for file in (f"{words[0]}/model.safetensors", "clips/one.mp4", *clips):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_bytes(b"\0\0\0\x18ftypmp42")
        request_of([word for word in words if word != "..."])

    return check


READERS = {
    **{"try": asked(try_request), "label": asked(label_request), "serve": asked(serve_request)},
    **{"probe": probe_request, "evaluate": evaluation_request, "plan": settings_of_a_plan},
    "merge": lambda words: make_merge_parser().parse_args(words),
    "data": lambda words: data_commands().parse_args(words),
    "train": lambda words: parse_args(without_dry_run(words)[0]),
    "warmup": lambda words: read_command("qwenvl warmup", without_dry_run(words)[0]),
}


def check_training(position: int, words: list[str]) -> None:
    if words[position].endswith(".py"):
        assert (ROOT / words[position]).is_file()
    for before in words[:position]:
        if before.endswith((".yaml", ".json")):
            assert (ROOT / before).is_file()
    if "--help" not in words:
        parse_args(without_dry_run(words[position + 1 :])[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_linked_files_exist_and_code_and_records_are_well_formed(page):
    """Anchors and navigation: the strict build of tests/test_site.py."""
    for target in LINK.findall(text_of(page)):
        assert not target or (page.parent / target).exists(), target
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")
    for block in blocks(page, "json"):
        while block := block.strip():  # one object, or several in a row
            _, end = json.JSONDecoder().raw_decode(block)
            block = block[end:]


def test_generated_pages_are_those_that_the_code_makes():
    """In a process of its own: whether the help of a flag is imported with torch depends on what came before."""
    code = "import json, runpy; made = runpy.run_path('scripts/make_docs.py'); "
    code += "print(json.dumps({name: made['page'](name) for name in made['PAGES']}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    for name, page in json.loads(done.stdout).items():
        assert page == (ROOT / "docs" / name).read_text(encoding="utf-8"), "run: python scripts/make_docs.py"


@pytest.fixture(scope="module")
def trained_on_clips(tiny_checkpoint, tmp_path_factory):
    """A folder with the run of the pages, ``runs/sop``, one step of a tiny model on a real clip; its batch."""
    from qwenvl import GRPOTrainer

    folder = tmp_path_factory.mktemp("trained")
    write_clip(folder / "clips" / "17.mp4", 60, size=(320, 240))
    turns = [{"from": "human", "value": "<video>\nWhich steps?"}, {"from": "gpt", "value": "<answer>(1)</answer>"}]
    (folder / "data.json").write_text(json.dumps([{"conversations": turns, "video": "clips/17.mp4"}]))
    settings = {"dataset_use": str(folder / "data.json"), "max_steps": 1, "generation_max_length": 8, "use_cpu": True}
    config = GRPOConfig(str(folder / "runs" / "sop"), **settings)
    trainer = GRPOTrainer(str(tiny_checkpoint()), config, reward_funcs=[lambda texts: [len(text) for text in texts]])
    trainer.train()
    trainer.save_model()
    return folder, trainer.data_collator([trainer.train_dataset[0]])["prompts"]


def test_the_result_answers_about_a_clip(trained_on_clips, monkeypatch, capsys):
    """The code of the page on using a model as it stands but for a shorter answer."""
    folder, batch = trained_on_clips
    monkeypatch.chdir(folder)
    names = run_snippet("using.md", "read_clip", {"max_new_tokens=512": "max_new_tokens=4"})
    assert names["inputs"]["video_grid_thw"].tolist() == batch.video_grid_thw.tolist() == [[2, 8, 12]]
    new = names["output"][0, names["inputs"]["input_ids"].shape[1] :]
    assert 0 < len(new) <= 4 and capsys.readouterr().out.endswith("\n")


def run_snippet(page: str, word: str, here: dict[str, str] | None = None, **names) -> dict:
    """Run the block of Python of a page that holds a word, with some texts in place of others. Returns its names."""
    file = ROOT / page if page == "README.md" else ROOT / "docs" / page
    [code] = [block for block in blocks(file, "python") if word in block]
    for there, replacement in (here or {}).items():
        assert code.count(there) == 1, f"{page} no longer says {there}"
        code = code.replace(there, replacement)
    names["__name__"] = "page"
    exec(compile(code, page, "exec"), names)
    return names


def test_a_script_reads_the_files_of_a_run(trained_on_clips, monkeypatch, capsys):
    monkeypatch.chdir(trained_on_clips[0])
    run_snippet("runs.md", "read_metrics")
    said = capsys.readouterr().out
    assert said.startswith("1 ") and said.count("data-0 ") == 4, "the record's id, once for each completion"


def test_a_script_reads_records(tiny_pair):
    names = run_snippet("data.md", "load_dataset", processor=tiny_pair()[1])
    assert names["batch"].input_ids.shape[0] == 1


def test_a_script_hands_rows_to_the_trainer(tiny_checkpoint, tmp_path, monkeypatch):
    from datasets import Dataset

    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{n} + 1?", "solution": str(n + 1), "difficulty": n % 10} for n in range(40)]
    Dataset.from_list(rows).to_parquet("mine.parquet")
    here = {"max_steps=300": "max_steps=1, use_cpu=True", "Qwen/Qwen3.5-4B": str(tiny_checkpoint())}
    trainer = run_snippet("data.md", "from_parquet", here)["trainer"]
    assert (len(trainer.train_dataset), len(trainer.eval_dataset)) == (18, 2)


def test_the_reward_file_of_the_page_can_be_tried(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    [code] = blocks(ROOT / "docs" / "rewards.md", "python")
    (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code)
    assert not main(["rewards", "try", "my_rewards.py:brief", "--completion", "short", "--solution", "any"])
    assert capsys.readouterr().out == "brief: 1\n"


def test_the_citation_and_the_changelog_are_of_this_version():
    [version] = re.findall(
        r'^    version="(.+)",$', (ROOT / "setup.py").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == version and {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_ten_lines_of_the_readme_train(tiny_checkpoint, tmp_path, monkeypatch):
    from transformers import AutoModelForImageTextToText

    here = {
        "Qwen/Qwen3.5-4B": str(tiny_checkpoint("qwen3_5")),
        "max_steps=100": "max_steps=2, generation_max_length=16, learning_rate=1e-3, use_cpu=True",
        "len(text) < 200": "len(text) % 2",  # so that it differs in what the tiny model babbles
    }
    monkeypatch.chdir(tmp_path)
    run_snippet("README.md", "GRPOTrainer", here)
    before = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint("qwen3_5")).state_dict()
    after = AutoModelForImageTextToText.from_pretrained(tmp_path / "runs" / "example").state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("language_model" in name for name in changed), "two steps at this learning rate move the weights"
    assert not any("visual.blocks" in name for name in changed), "the vision tower is frozen by default"
