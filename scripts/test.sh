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
exec "$BIN/python" -m pytest "$@"
