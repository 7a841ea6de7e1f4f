"""Following a run: another state when the run wrote something, the files to this machine alone, and the command."""

import http.client
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from qwenvl.doctor.report import main, make_report
from qwenvl.report.serve import ReportServer, state_of
from qwenvl.runlog import RunLog
from tests.report.runs import group

ASKED = "performance.getEntriesByType('resource').filter(each => each.name.endsWith('/state')).length"


def ask(port, path, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.fixture
def server(make_run):
    """A server of the report of a run."""
    run = make_run()
    with ReportServer(make_report([run], run / "report").folder) as server:
        yield server


def test_the_state_is_another_when_the_run_has_written(make_run):
    run = make_run()
    before = state_of([run])
    assert state_of([run]) == before and before.count(",") == 2
    RunLog(run).log_metrics(3, {"loss": 0.0})
    logged = state_of([run])
    assert logged != before
    RunLog(run, rank=1).log_rollouts(group([0.0, 1.0], step=3))
    assert state_of([run]) != logged


def test_files_and_state_are_served(server):
    server.state = "17"
    assert ask(server.server_port, "/state") == (200, "17")
    status, page = ask(server.server_port, "/")
    assert status == 200 and "Report of sop" in page
    assert ask(server.server_port, "/data/run-0/index.js")[0] == 200
    assert ask(server.server_port, "/data/")[0] == 404, "folders are not listed"
    assert ask(server.server_port, "/../run.json")[0] == 404, "nor left"
    assert ask(server.server_port, "/%00")[0] == 404


def test_it_listens_on_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server.server_port, "/", host="evil.example")[0] == 403
    assert ask(server.server_port, "/", host=f"localhost:{server.server_port}")[0] == 200


def test_a_port_that_is_taken(make_run, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert main([str(make_run()), "--serve", str(other.getsockname()[1])]) == 2
    assert "give another port" in capsys.readouterr().err


def test_the_command_writes_again_what_the_run_adds(make_run):
    run = make_run(finished=0)
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # where it is ignored
    code += "from qwenvl.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "report", str(run), "--serve", "0", "--pictures", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert "index.html" in process.stdout.readline()
        port = int(re.search(r":(\d+)/ follows", process.stdout.readline())[1])
        _, before = ask(port, "/state")
        while not before:  # the first answer may come before the first state
            _, before = ask(port, "/state")
        RunLog(run).log_metrics(3, {"loss": 0.0, "reward/total": 0.9})
        while ask(port, "/state")[1] == before:
            assert process.poll() is None
            time.sleep(0.1)
        assert "3 steps, not finished" in re.sub(r"<[^>]+>", "", ask(port, "/")[1])
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_the_page_follows_and_keeps_its_place(browser, make_run):
    run = make_run(finished=0)
    with ReportServer(make_report([run], run / "report").folder) as server:
        server.state = "before"
        browser.errors.clear()
        browser.show(1280)
        browser.open(server.address + "#step=1&id=18&f_data=more")
        browser.wait(f"document.querySelector('#group article') !== null && {ASKED} > 0")
        browser.run("scrollTo(0, 150)")
        RunLog(run).log_rollouts(group([0.0, 1.0], step=3, record_id="18", where="data/more.jsonl:3"))
        make_report([run], run / "report")
        server.state = "after"
        count = "document.querySelector('#count')?.textContent"
        browser.wait(f"{count} === '3 of 7 groups' && document.querySelector('#group article') !== null")
        browser.wait("location.hash.includes('step=1&id=18') && scrollY === 150")
        assert browser.errors == []
    browser.wait("document.querySelector('h1').textContent.endsWith('--serve has ended')")
