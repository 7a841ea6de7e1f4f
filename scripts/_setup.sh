# Sourced by demo.sh and test.sh: `set_up EXTRAS` leaves in $BIN the programs of an environment that has the package.
#
# An active virtual environment is used; otherwise `.venv` in the repository, made where it is missing. The package is
# installed when setup.py, EXTRAS or the exact versions have changed since the last time, and not where `pip install -e .`
# has done so: that needs no network again. pip's own variables (PIP_INDEX_URL, ...) apply.
#
# What is installed has the exact versions of scripts/constraints.txt, so that it is what was tested. Only an active
# environment that has PyTorch keeps its own versions, as long as they are within the ranges of setup.py: its PyTorch
# was chosen for a machine.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

die() {
    printf 'error: %s\n' "$@" >&2
    exit 1
}

fits() { # fits PYTHON: is it a version that the package supports?
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    local name without=""
    for name in python3.12 python3.11 python3.13 python3; do
        if fits "$name" && "$name" -c 'import venv, ensurepip' >/dev/null 2>&1; then
            echo "$name"
            return
        fi
        if fits "$name"; then without="$name"; fi
    done
    [[ -z "$without" ]] ||
        die "$("$without" --version) cannot make virtual environments: its venv or ensurepip module is missing." \
            "Install it (on Debian and Ubuntu: apt install python3-venv) or activate an environment of your own."
    die "no Python 3.11 to 3.13 found; python3 is $(python3 --version 2>/dev/null || echo missing)." \
        "Install one of these, or activate a virtual environment that has it."
}

active_environment() { # the folder of the virtual or conda environment that is active; conda's base does not count
    if [[ -n "${VIRTUAL_ENV-}" ]]; then
        echo "$VIRTUAL_ENV"
    elif [[ -n "${CONDA_PREFIX-}" && "${CONDA_DEFAULT_ENV-}" != base ]]; then
        echo "$CONDA_PREFIX"
    fi
}

set_up() { # set_up EXTRAS: "" or "dev"
    local extras="$1" env stamp state
    env="$(active_environment)"
    if [[ -n "$env" ]]; then
        fits "$env/bin/python" ||
            die "the active environment $env has $("$env/bin/python" --version 2>&1); Python 3.11 to 3.13 is needed."
    else
        env="$ROOT/.venv"
        make_environment "$env"
    fi
    BIN="$env/bin"
    stamp="$env/.qwenvl-installed"
    state="$ROOT $(cat "$ROOT/setup.py" "$ROOT/scripts/constraints.txt" | cksum)"
    # What "dev" installs includes what "" does.
    if [[ -z "$extras" && "$env" != "$ROOT/.venv" ]] && installed_by_hand; then return; fi
    if ! grep -qsxF -e "$state dev" -e "$state $extras" "$stamp"; then
        if [[ "$env" != "$ROOT/.venv" ]] && has_torch; then
            install_package -e "$(with_extras "$extras")"
        else
            install_package -c "$ROOT/scripts/constraints.txt" -e "$(with_extras "$extras")"
        fi
        echo "$state $extras" >"$stamp"
    fi
}

set_up_oldest() { # an environment of its own with the lower bounds of setup.py and what tests need
    local bounds
    make_environment "$ROOT/.venv-oldest"
    BIN="$ROOT/.venv-oldest/bin"
    install_package setuptools packaging # what scripts/requirements.py reads setup.py with
    bounds="$(mktemp)"
    "$BIN/python" "$ROOT/scripts/requirements.py" oldest >"$bounds" || die "could not read the lower bounds of setup.py"
    install_package -c "$bounds" -e "$(with_extras dev)"
    rm -f "$bounds"
}

set_up_newest() { # an environment of its own with the newest releases, those beyond the upper bounds of setup.py too
    local names
    make_environment "$ROOT/.venv-newest"
    BIN="$ROOT/.venv-newest/bin"
    install_package --upgrade --upgrade-strategy eager -e "$(with_extras dev)"
    names="$("$BIN/python" "$ROOT/scripts/requirements.py" newest)" || die "could not read the upper bounds of setup.py"
    # pip warns of the bounds that it passes, and goes on.
    # shellcheck disable=SC2086
    install_package --upgrade $names
}

make_environment() { # make_environment FOLDER: where there is none
    local env="$1" python
    fits "$env/bin/python" && return
    python="$(find_python)" || exit 1
    echo "making a virtual environment in $env with $("$python" --version)"
    "$python" -m venv --clear "$env" || die "could not make $env"
}

installed_by_hand() { # did `pip install -e .` install this clone, and has setup.py not changed since?
    # Isolated (-I): else the folder qwenvl.egg-info of the current folder would be found first.
    "$BIN/python" -I - "$ROOT" >/dev/null 2>&1 <<'END'
import json, sys
from importlib.metadata import distribution
from pathlib import Path

root, found = Path(sys.argv[1]), distribution("qwenvl")
origin = json.loads(found.read_text("direct_url.json"))
is_this_clone = origin["url"] == root.as_uri() and origin["dir_info"].get("editable", False)
installed_at = Path(found.locate_file(f"qwenvl-{found.version}.dist-info/METADATA")).stat().st_mtime
sys.exit(not (is_this_clone and installed_at > (root / "setup.py").stat().st_mtime))
END
}

has_torch() {
    "$BIN/python" -c 'import sys, importlib.util as find; sys.exit(find.find_spec("torch") is None)' >/dev/null 2>&1
}

with_extras() { # with_extras EXTRAS: the package as pip takes it
    echo "$ROOT${1:+[$1]}"
}

install_package() { # install_package ARGUMENTS OF pip install
    local log started=$SECONDS
    log="$(mktemp)"
    echo "installing the package and what it needs; with PyTorch that can take some minutes"
    if ! "$BIN/python" -m pip install --disable-pip-version-check "$@" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        die "the installation failed; the whole log is in $log"
    fi
    rm -f "$log"
    echo "installed in $((SECONDS - started)) s"
}
