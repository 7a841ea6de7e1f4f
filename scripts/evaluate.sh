#!/usr/bin/env bash
# Evaluate a checkpoint with another project's harness, which has an environment of its own.
#
#   bash scripts/evaluate.sh lmms TASKS MODEL [--limit 100] [--task_folder DIR] [--output_dir DIR] [--flag of training value ...]
#
# TASKS are names of lmms-eval, separated by commas, or of tasks in --task_folder. MODEL is a checkpoint, an adapter, the
# folder of a run or a name on the hub. It is asked by this library: its frames, its positions, its sampler.
# The environment is made once, in $LMMS_ENV (default: lmms-eval-VERSION in the cache folder).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"
root="$ROOT"

usage() { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

if [[ "${1:-}" == "-h" || "${1:-}" == "--help" ]]; then usage; exit 0; fi
if [[ "${1:-}" != "lmms" || $# -lt 3 ]]; then usage >&2; exit 2; fi
shift

version="$(sed -n 's/^LMMS_EVAL = "\(.*\)"$/\1/p' "$root/scripts/lmms/evaluate.py")"
env="${LMMS_ENV:-${QWENVL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/qwenvl}/lmms-eval-$version}"
if [[ ! -f "$env/ready-$version" ]]; then
    echo "making an environment with lmms-eval $version in $env (once, some minutes)" >&2
    "$(find_python)" -m venv --clear "$env"
    "$env/bin/pip" install --quiet --disable-pip-version-check "lmms-eval==$version"
    # lmms-eval asks for PyAV below 16. This library reads clips with a newer one, so it comes last.
    echo "(pip now says that lmms-eval requires an older av: the tasks that are offered here do not use it)" >&2
    "$env/bin/pip" install --quiet --disable-pip-version-check "$root"
    "$env/bin/python" -c "import av, lmms_eval, qwenvl"
    touch "$env/ready-$version"
fi
export PYTHONPATH="$root"
exec "$env/bin/python" "$root/scripts/lmms/evaluate.py" "$@"
