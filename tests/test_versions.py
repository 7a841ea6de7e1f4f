"""Installed versions are those that were tested: ranges, exact versions, and the internals of libraries in use."""

from __future__ import annotations

import logging
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from qwenvl import versions
from qwenvl.versions import INTERNALS, TESTED, Internal, missing_internals, untested, warn_of_untested_versions

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")


def declared() -> list[Requirement]:
    """The requirements of the installed package, those of its extra `dev` too."""
    return [Requirement(text) for text in metadata.requires("qwenvl")]


def constraints() -> list[Requirement]:
    lines = (ROOT / "scripts" / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def applies(requirement: Requirement, python: str) -> bool:
    place = {"python_version": python, "python_full_version": f"{python}.5", "platform_machine": "x86_64"}
    place |= {"extra": "dev", "sys_platform": "linux"}
    return requirement.marker is None or requirement.marker.evaluate(place)


@pytest.mark.parametrize("library", ["torch", "transformers", "peft", "deepspeed"])
def test_every_internal_that_is_used_exists(library):
    """The message names what a new release of a library has removed, and the files that use it."""
    pytest.importorskip(library)
    assert missing_internals(library) == []


def test_an_internal_that_is_gone_is_named_with_the_files_that_use_it(monkeypatch):
    gone = Internal("json", "no_such_name", ("a.py", "b.py"))
    monkeypatch.setattr(versions, "INTERNALS", (gone,))
    assert missing_internals("json") == ["json.no_such_name, used in a.py, b.py"]


def test_every_internal_is_used_where_the_list_says():
    for internal in INTERNALS:
        attribute = internal.name.split(".")[-1]
        for file in internal.used_in:
            assert attribute in (ROOT / "qwenvl" / file).read_text(), f"{file} has no {attribute}: qwenvl/versions.py"


def test_every_private_hook_of_the_trainer_that_is_overridden_is_listed():
    from transformers import Trainer

    from qwenvl import GRPOTrainer, WarmupTrainer

    listed = {internal.name.removeprefix("Trainer.") for internal in INTERNALS}
    ours = [kind for trainer in (GRPOTrainer, WarmupTrainer) for kind in trainer.__mro__ if kind.__module__ < "r"]
    overridden = {name for kind in ours for name in vars(kind) if name.startswith("_") and not name.startswith("__")}
    assert {name for name in overridden if hasattr(Trainer, name)} - listed == set()


@pytest.mark.parametrize("tested", TESTED, ids=lambda tested: tested.library)
def test_the_tested_versions_are_the_range_of_setup_py(tested):
    [specifier] = {each.specifier for each in declared() if each.name == tested.library}
    bounds = {each.operator: Version(each.version) for each in specifier}
    major, minor = map(int, tested.newest.split("."))
    assert bounds["<"] == Version(f"{major}.{minor + 1}")
    assert f"{bounds['>='].major}.{bounds['>='].minor}" == tested.oldest


def test_the_first_screen_of_the_readme_names_the_tested_versions():
    text = (ROOT / "README.md").read_text()
    spans = {tested.library: f"{tested.oldest} to {tested.newest}" for tested in TESTED}
    expected = f"Python {PYTHONS[0]} to {PYTHONS[-1]}, PyTorch {spans['torch']}, transformers {spans['transformers']}"
    assert expected in text


@pytest.mark.parametrize("python", PYTHONS)
def test_each_python_has_an_exact_version_of_every_requirement_within_its_range(python):
    exact = {}
    for requirement in constraints():
        if applies(requirement, python):
            [pin] = requirement.specifier
            assert pin.operator == "=="
            exact[requirement.name.lower().replace("_", "-")] = Version(pin.version)
    needed = [each for each in declared() if applies(each, python)]
    assert len(needed) > 30
    for requirement in needed:
        version = exact.get(requirement.name.lower().replace("_", "-"))
        assert version is not None, f"scripts/constraints.txt has no {requirement.name} for Python {python}"
        assert version in requirement.specifier, f"{requirement} against {version}, Python {python}"


@pytest.mark.parametrize(
    ("library", "version", "found"),
    [
        ("transformers", "5.23.0", None),
        ("transformers", "5.24.3", None),
        ("torch", "2.14.1+cpu", None),
        ("transformers", "5.22.2", "5.22"),
        ("transformers", "5.26.0.dev0", "5.26"),
        ("peft", "1.0.0", "1.0"),
        ("numpy", "99.0", None),
    ],
)
def test_a_version_outside_of_the_tested_range_has_a_sentence(library, version, found):
    sentence = untested(library, version)
    assert (sentence is None) == (found is None)
    if found is not None:
        assert f"tested with {library} " in sentence and f"this is {found}:" in sentence


def test_an_untested_version_is_reported_once_by_the_first_process(monkeypatch, caplog):
    monkeypatch.setattr(metadata, "version", lambda name: "5.26.1" if name == "transformers" else _missing(name))
    with caplog.at_level(logging.WARNING, versions.__name__):
        warn_of_untested_versions()
        monkeypatch.setenv("RANK", "1")
        warn_of_untested_versions()
    [record] = caplog.records
    assert "transformers 5.23 to 5.24; this is 5.26" in record.getMessage()


def _missing(name: str) -> str:
    raise metadata.PackageNotFoundError(name)
