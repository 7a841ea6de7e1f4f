#!/usr/bin/env bash
# Check the style and the types, and run the tests. Arguments that are not named here go to pytest:
#
#   bash scripts/test.sh                # all but those marked slow
#   bash scripts/test.sh --slow -x      # all, stop at the first failure
#   bash scripts/test.sh tests/grpo     # paths are those of the repository
#   bash scripts/test.sh --vllm         # only those with real vLLM, whose environment is made first (some minutes, once)
#   bash scripts/test.sh --newest       # in an environment of its own, with the newest release of every library
#   bash scripts/test.sh --oldest       # in an environment of its own, with the lower bounds of setup.py
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"
# The tests start hundreds of processes. Where nothing that Python compiles is kept, as images of Docker often have it,
# each of them would compile PyTorch's and transformers' modules again, 20 seconds of a processor.
unset PYTHONDONTWRITEBYTECODE

checks_style=true
case "${1-}" in
--newest | --oldest)
    checks_style=false # other versions of ruff and mypy have other rules
    "set_up_${1#--}"
    shift
    "$BIN/python" -m pip list --format freeze | grep -iE '^(torch|torchvision|transformers|accelerate|peft|deepspeed)='
    ;;
*) set_up dev ;;
esac
cd "$ROOT"
if [[ "${1-}" == --vllm ]]; then
    # Tests have a cache folder of their own, so the place of the environment is given by name.
    export QWENVL_VLLM_ENV="${QWENVL_VLLM_ENV:-${QWENVL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/qwenvl}/vllm}"
    bash scripts/serve_vllm.sh --build
    # Two files at a time: a server takes a core and a gigabyte, and its tests wait for it. A test that starts three of
    # them takes two minutes on quiet cores, and twice that on a busy machine.
    exec "$BIN/python" -m pytest --vllm -m vllm --timeout 600 --numprocesses auto --maxprocesses 2 --dist loadfile \
        tests/vllm_server "${@:2}"
fi
if $checks_style; then
    "$BIN/ruff" check .
    "$BIN/python" -m mypy
fi
# Several at a time, one more than there are cores: many of them wait for processes and servers that they have started.
workers="$("$BIN/python" -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))')"
exec "$BIN/python" -m pytest --numprocesses "$workers" --dist worksteal --durations 15 "$@"
