"""``qwenvl serve MODEL``: an OpenAI-compatible server that shows clips to a model as its training did."""

from __future__ import annotations

from collections.abc import Sequence

from qwenvl.console import say
from qwenvl.evaluate.command import MODEL, About, run_command
from qwenvl.evaluate.settings import SERVE_GROUPS
from qwenvl.files import check_installed
from qwenvl.use.options import ServeOptions, UseRequest, use_request

LOCAL = ("127.0.0.1", "::1", "localhost")
ABOUT = About(
    usage="qwenvl serve MODEL [--port 8000] [--media_root DIR] [--flag of training value ...]\n"
    "       qwenvl serve MODEL DATA --check URL [--flag of training value ...]",
    own=ServeOptions,
    groups=SERVE_GROUPS,
    description="Serve a model to OpenAI clients (/v1/chat/completions) with the frames, times, sizes, template and "
    "system turn of its training. Without a temperature an answer is greedy, as that of qwenvl try. "
    f"{MODEL}. Settings are those of the run that trained the model, if that is known.",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM. Status 2 for a bad command line."""
    return run_command("serve", argv, serve_request, _run, ABOUT)


def serve_request(argv: Sequence[str], begins: bool = False) -> UseRequest:
    """The command line. See ``use_request``.

    Raises:
        ImportError: the packages of a server are not installed.
    """
    checks = any(word.split("=")[0] == "--check" for word in argv)
    if begins and not checks:
        for package in ("uvicorn", "fastapi"):
            check_installed(package, "serve")
    request = use_request(argv, ServeOptions, SERVE_GROUPS, "one MODEL, or MODEL DATA with --check,", begins)
    if request.options.check is None and not request.config.decode_timeout:
        raise ValueError("--decode_timeout 0 lets the clip of one request stop the server: give seconds")
    return request


def _run(request: UseRequest) -> str:
    from qwenvl.data.errors import told_to_the_user
    from qwenvl.files import require

    options = request.options
    with told_to_the_user("qwenvl serve", (ValueError, OSError, ImportError)):
        if options.check is not None:
            from qwenvl.use.check_server import check

            return check(request)
        require("uvicorn", "serve")
        require("fastapi", "serve")
        from qwenvl.use.serve import ChatServer
        from qwenvl.use.web import listen, serve

        with listen(options.host, options.port) as listener:  # before a model is loaded, which takes minutes
            server = ChatServer(request)
            if options.key is None and options.host not in LOCAL:
                say(f"--host {options.host}: everybody who reaches this address may ask: --api_key keeps others out")
            settings = request.asking.settings_of
            print(f"serving {server.name} at http://{options.host}:{options.port}/v1, settings {settings}")
            serve(server, listener)
    return ""
