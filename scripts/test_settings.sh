#!/usr/bin/env bash
# Run the tests once in each of several settings, and print one line for each. Arguments go to pytest.
#
#   bash scripts/test_settings.sh                       # the whole suite, in all settings
#   SETTINGS="avx2 threads8" bash scripts/test_settings.sh tests/train
#
# Settings: machine (as it is), avx2 and avx512 (no newer instructions of the processor), generic (the plainest ones),
# threads1 and threads8 (of each process), shell (a user's odd environment),
# weights (other random weights and samples), order (files and tests in random order), split0.25, split0.5 and split0.75
# (another machine: every linear layer in float32 is summed in two parts, the first as long as this share of it).
# The logs are in a temporary folder, which the last line names. Ends with status 1 if a setting failed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

set_up dev
cd "$ROOT"
logs="$(mktemp -d)"
failed=0

run() { # run NAME NAME=VALUE... -- ARGUMENTS: pytest in an environment
    local name="$1" environment=() started=$SECONDS outcome=passed
    shift
    while [[ "$1" != -- ]]; do
        environment+=("$1")
        shift
    done
    shift
    env "${environment[@]}" "$BIN/python" -m pytest "$@" >"$logs/$name" 2>&1 || outcome=FAILED
    [[ "$outcome" == passed ]] || failed=1
    printf '%-10s %s in %d s%s\n' "$name" "$outcome" $((SECONDS - started)) \
        "$(sed -n 's/^\(FAILED\|ERROR\) \([^ ]*\).*/; \2/p' "$logs/$name" | tr -d '\n')"
}

for setting in ${SETTINGS:-machine avx2 avx512 generic threads1 threads8 shell weights order split0.25 split0.5 split0.75}; do
    case "$setting" in
    machine) run "$setting" -- "$@" ;;
    avx2) run "$setting" ONEDNN_MAX_CPU_ISA=AVX2 -- "$@" ;;
    avx512) run "$setting" ONEDNN_MAX_CPU_ISA=AVX512_CORE -- "$@" ;;
    generic) run "$setting" ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE -- "$@" ;;
    threads1) run "$setting" QWENVL_TEST_THREADS=1 -- "$@" ;;
    threads8) run "$setting" QWENVL_TEST_THREADS=8 -- "$@" ;;
    shell) run "$setting" QWENVL_TRACEBACK=1 QWENVL_CACHE=/proc/none WORLD_SIZE=2 RANK=1 DRY_RUN=1 MODEL=none \
        COLUMNS=30 TZ=Asia/Kathmandu LC_ALL=C http_proxy=http://127.0.0.1:9 ACCELERATE_MIXED_PRECISION=bf16 -- "$@" ;;
    weights) run "$setting" QWENVL_TEST_SEED="${SEED:-1}" -- "$@" ;;
    order) run "$setting" QWENVL_TEST_ORDER="${SEED:-1}" -- "$@" ;;
    split0.*) run "$setting" QWENVL_TEST_SPLIT="${setting#split}" -- "$@" ;;
    *) die "unknown setting $setting; the head of scripts/test_settings.sh names those there are" ;;
    esac
done
echo "logs: $logs"
exit "$failed"
