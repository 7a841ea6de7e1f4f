#!/usr/bin/env bash
# Watch a tiny Qwen2.5-VL learn, by GRPO, to name the steps of assembly videos: about 4 minutes on two CPU cores.
#
#   bash scripts/demo.sh                   # from any folder; results in runs/demo of the repository
#   bash scripts/demo.sh --look            # it learns to look again, 8 minutes; results in runs/demo_look
#   bash scripts/demo.sh --timeline        # which step, from when to when: 10 minutes; results in runs/demo_timeline
#   bash scripts/demo.sh --seed 1          # `bash scripts/demo.sh --help` lists the options
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

set_up ""
folder=demo
case " $* " in
    *" --look "*) folder=demo_look ;;
    *" --timeline "*) folder=demo_timeline ;;
esac
exec "$BIN/qwenvl" demo --output_dir "$ROOT/runs/$folder" "$@"
