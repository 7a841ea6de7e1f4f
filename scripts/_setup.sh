# Sourced by demo.sh and test.sh: `set_up EXTRAS` leaves in $BIN the programs of an environment that has the package.
#
# An active virtual environment is used; otherwise `.venv` in the repository, made where it is missing. The package is
# installed when setup.py or EXTRAS have changed since the last time. pip's own variables (PIP_INDEX_URL, ...) apply.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

die() {
    printf 'error: %s\n' "$@" >&2
    exit 1
}

fits() { # fits PYTHON: is it a version that the package supports?
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    local name without=""
    for name in python3.12 python3.11 python3.13 python3.10 python3; do
        if fits "$name" && "$name" -c 'import venv, ensurepip' >/dev/null 2>&1; then
            echo "$name"
            return
        fi
        if fits "$name"; then without="$name"; fi
    done
    [[ -z "$without" ]] ||
        die "$("$without" --version) cannot make virtual environments: its venv or ensurepip module is missing." \
            "Install it (on Debian and Ubuntu: apt install python3-venv) or activate an environment of your own."
    die "no Python 3.10 to 3.13 found; python3 is $(python3 --version 2>/dev/null || echo missing)." \
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
    local extras="$1" env python stamp state
    env="$(active_environment)"
    if [[ -n "$env" ]]; then
        fits "$env/bin/python" ||
            die "the active environment $env has $("$env/bin/python" --version 2>&1); Python 3.10 to 3.13 is needed."
    else
        env="$ROOT/.venv"
        if ! fits "$env/bin/python"; then
            python="$(find_python)" || exit 1
            echo "making a virtual environment in $env with $("$python" --version)"
            "$python" -m venv --clear "$env" || die "could not make $env"
        fi
    fi
    BIN="$env/bin"
    stamp="$env/.qwenvl-installed"
    state="$ROOT $(cksum <"$ROOT/setup.py")"
    # What "dev" installs includes what "" does.
    if ! grep -qsxF -e "$state dev" -e "$state $extras" "$stamp"; then
        install_package "$extras"
        echo "$state $extras" >"$stamp"
    fi
}

install_package() { # install_package EXTRAS
    local target="$ROOT${1:+[$1]}" log started=$SECONDS
    log="$(mktemp)"
    echo "installing the package and what it needs; with PyTorch that can take some minutes"
    if ! "$BIN/python" -m pip install --disable-pip-version-check -e "$target" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        die "the installation failed; the whole log is in $log"
    fi
    rm -f "$log"
    echo "installed in $((SECONDS - started)) s"
}
