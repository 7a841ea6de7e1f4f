"""The wheel by itself, away from the repository: its command, its example records, its types and its metadata."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

from qwenvl.cli import main

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with the wheel installed into it, built from a copy of the sources."""
    source, wheels, site = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "site"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("qwenvl", "data"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    run("setup.py", "-q", "bdist_wheel", "-d", wheels, cwd=source)
    [wheel] = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
    return site


def test_the_wheel_has_the_example_and_the_version(site, tmp_path):
    code = (
        "import qwenvl, qwenvl.cli; qwenvl.cli.main(['--version']);"
        "from qwenvl.data.records.catalog import resolve_datasets;"
        "print(qwenvl.__file__, resolve_datasets('example')[0].annotation_path)"
    )
    _, shown, package, records = run("-c", code, cwd=tmp_path, PYTHONPATH=str(site)).split()
    assert shown == version("qwenvl")
    assert Path(package).is_relative_to(site) and Path(records).is_relative_to(site) and Path(records).is_file()


def test_the_wheel_has_types_templates_and_metadata(site):
    (distribution,) = distributions(path=[str(site)])
    assert (site / "qwenvl" / "py.typed").is_file()
    assert [each.load() for each in distribution.entry_points] == [main]
    templates = [path for kind in ("html", "css", "js") for path in (ROOT / "qwenvl").rglob(f"*.{kind}")]
    missing = [path for path in templates if not (site / path.relative_to(ROOT)).is_file()]
    assert missing == []
    assert distribution.metadata.get_payload().startswith("# qwenvl")
    assert distribution.metadata["Description-Content-Type"] == "text/markdown"
    assert "Typing :: Typed" in distribution.metadata.get_all("Classifier")


@pytest.mark.slow
def test_the_wheel_trains_in_an_empty_folder(site, tiny_checkpoint, tmp_path):
    settings = {
        **{"model_name_or_path": tiny_checkpoint(), "dataset_use": "example", "output_dir": "run", "max_steps": 1},
        **{"generation_max_length": 4, "grpo_sample_size": 2, "per_device_train_batch_size": 1},
    }
    flags = [f"--{name}={value}" for name, value in settings.items()]
    run("-m", "qwenvl", "train", *flags, "--use_cpu", cwd=tmp_path, PYTHONPATH=str(site))
    assert (tmp_path / "run" / "model.safetensors").is_file() and (tmp_path / "run" / "run.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_trainer_is_imported_in_little_more_time_than_torch_and_the_trainer_of_transformers():
    """Counted in modules: of other libraries only those that decode clips and images and draw the display."""
    code = (
        "import sys, torch, transformers.trainer\n"
        "before = set(sys.modules)\n"
        "from qwenvl import GRPOTrainer\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=600)
    compiled = {name for name in ended.stdout.split() if name.startswith("_")}
    expected = {"qwenvl", "transformers", "av", "PIL", "rich"}
    assert set(ended.stdout.split()) - compiled <= expected | sys.stdlib_module_names


def test_the_demo_installs_nothing_where_a_user_has_installed_this_clone(tmp_path):
    clone, env = tmp_path / "clone", tmp_path / "env"
    (clone / "scripts").mkdir(parents=True)
    for name in ("setup.py", "scripts/_setup.sh", "scripts/constraints.txt"):
        shutil.copy(ROOT / name, clone / name)
    # Without pip, so that an installation would fail.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    [packages] = env.glob("lib/python3*/site-packages")
    info = packages / "qwenvl-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: qwenvl\nVersion: 0.1.0\n")
    (info / "direct_url.json").write_text(json.dumps({"url": clone.as_uri(), "dir_info": {"editable": True}}))
    environment = {**os.environ, "VIRTUAL_ENV": str(env), "CONDA_PREFIX": ""}
    environment.pop("PYTHONPATH", None)  # of the tests, where the package itself lies
    command = ["bash", "-c", f"set -euo pipefail; source {clone}/scripts/_setup.sh; set_up ''; echo $BIN"]

    def set_up() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    os.utime(clone / "setup.py", (0, 0))
    assert set_up().stdout == f"{env}/bin\n"
    os.utime(clone / "setup.py")  # a newer setup.py may need more
    assert "No module named pip" in set_up().stderr
