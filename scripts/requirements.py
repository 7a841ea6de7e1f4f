"""The requirements of setup.py, one a line, as `scripts/test.sh` installs them at the ends of their ranges.

python scripts/requirements.py oldest   # name==lower bound: constraints, with which pip installs the oldest versions
python scripts/requirements.py newest   # name alone, of those with an upper bound: pip installs what came out since
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
EXTRA = "dev"
UPPER = ("<", "<=", "==", "~=")


def declared() -> list[Requirement]:
    """The requirements of the package and of its extra `dev` that apply to this Python and machine."""
    # setuptools brings distutils, which Python itself has lacked since 3.12, so it has to come first.
    import setuptools  # noqa: F401  # isort: skip
    from distutils.core import run_setup  # isort: skip

    os.chdir(ROOT)  # setup.py lists the packages below the working directory
    distribution = run_setup("setup.py", stop_after="init")
    texts = [*distribution.install_requires, *distribution.extras_require[EXTRA]]
    requirements = [Requirement(text) for text in texts]
    return [each for each in requirements if each.marker is None or each.marker.evaluate()]


def lower_bound(versions: SpecifierSet) -> str | None:
    """The version after `>=`, or None without one."""
    for specifier in versions:
        if specifier.operator == ">=":
            return specifier.version
    return None


def oldest(requirements: list[Requirement]) -> list[str]:
    """`name==version` for each requirement with a lower bound."""
    lines = []
    for requirement in requirements:
        bound = lower_bound(requirement.specifier)
        if bound is not None:
            lines.append(f"{requirement.name}=={bound}")
    return lines


def newest(requirements: list[Requirement]) -> list[str]:
    """The names of the requirements that have an upper bound. The others are at their newest without more ado."""
    bounded = []
    for requirement in requirements:
        if any(specifier.operator in UPPER for specifier in requirement.specifier):
            bounded.append(requirement.name)
    return bounded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", choices=("oldest", "newest"))
    chosen = {"oldest": oldest, "newest": newest}[parser.parse_args().versions]
    print("\n".join(chosen(declared())))


if __name__ == "__main__":
    main()
