"""The program behind ``fork_python``, without imports that take time: it hands its words to the process that forks."""

import json
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def main(address: str, words: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until it is known whom they are for
    asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    request = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(request)
        with server.makefile("r") as answers:
            child = int(answers.readline())
            for number in SIGNALS:
                signal.signal(number, lambda number, _: os.killpg(child, number))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            status = int(answers.readline())
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
