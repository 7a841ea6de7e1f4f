#!/usr/bin/env bash
# Check the style and the types, and run the tests. Arguments go to pytest:
#
#   bash scripts/test.sh                # all but those marked slow
#   bash scripts/test.sh --slow -x      # all, stop at the first failure
#   bash scripts/test.sh tests/grpo     # paths are those of the repository
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

set_up dev
cd "$ROOT"
"$BIN/ruff" check .
"$BIN/python" -m mypy
# Several at a time, as many as there are cores: most of the time is that of single threads and of waiting for processes.
exec "$BIN/python" -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal "$@"
