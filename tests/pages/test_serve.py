"""A folder of runs, served on this machine's loopback: choose, open, compare, and nothing else."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from streamrace.repro.__main__ import main
from tests.reports.campaign_folders import campaign
from tests.reports.run_folders import run_folder

ROOT = Path(__file__).resolve().parents[2]
Visit = Callable[..., Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "runs"
    run_folder(folder / "bad & <b>odd")
    run_folder(folder / "good", clean=True)
    run_folder(folder / "other", clean=True, scenario={"model": "falcon"})
    campaign(folder / "tried", fix="none", diverged=2, timings=9)
    (folder / "not a run").mkdir()
    (folder.parent / "secret").write_text("nobody may read this")
    (folder.parent / "beside").mkdir()
    run_folder(folder.parent / "beside", clean=True)
    return folder


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    """Where ``streamrace report --serve`` says that it is."""
    command = [sys.executable, "-m", "streamrace", "report", "--serve", "--port", "0", str(runs)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A shell's background jobs ignore Ctrl-C, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+/", said)
    assert found, said
    yield found.group()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def asked(address: str, path: str, host: str | None = None) -> tuple[int, str]:
    """The path as it stands, which a browser would tidy up."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.putrequest("GET", path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_run_is_chosen_and_opened(address: str, visit: Visit) -> None:
    seen = visit(address)
    assert seen.page.locator("#runs tbody tr").count() == 4
    assert "<b>odd" in seen.page.inner_text("#runs")
    seen.page.get_by_role("link", name="bad & <b>odd").click()
    seen.page.wait_for_url("**/report?**")
    assert seen.page.inner_text("#verdict") == "unstable"
    assert seen.errors == []


def test_two_runs_are_chosen_and_compared(address: str, visit: Visit) -> None:
    page = visit(address).page
    page.get_by_label("compare bad").check()
    page.get_by_label("compare good").check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/report?**")
    assert page.locator("#runs .mark").all_inner_texts() == ["unstable", "clean"]


def test_a_campaign_is_opened_by_itself_and_beside_a_run(address: str, visit: Visit) -> None:
    page = visit(address).page
    assert "2 of 9 timings diverged" in page.inner_text("#runs")
    page.get_by_role("link", name="tried").click()
    page.wait_for_url("**/report?**")
    assert "under 2 of 9 timings it goes wrong" in page.inner_text("#headline")
    beside = visit(f"{address}report?run=good&run=tried").page
    assert "2 of 9" in beside.inner_text("#matrix")


def test_what_cannot_be_compared_is_said_in_a_sentence(address: str) -> None:
    status, text = asked(address, "/report?run=good&run=other")
    assert status == 404
    assert "falcon" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/report?run=../beside",
        "/report?run=..%2Fbeside",
        "/report?run=%2Fetc",
        "/report?run=.",
        "/report?run=not%20a%20run",
        "/../secret",
        "/..%2fsecret",
        "/good/findings.json",
        "/static/../../secret",
        "/report?run=good%00",
    ],
)
def test_no_path_leads_out_of_the_folder(address: str, path: str) -> None:
    status, text = asked(address, path)
    assert status == 404
    assert "nobody may read this" not in text
    assert "clean" not in text


def test_a_name_that_somebody_else_gave_this_machine_is_refused(address: str) -> None:
    port = urlsplit(address).port
    assert asked(address, "/", f"localhost:{port}")[0] == 200
    assert asked(address, "/", f"attacker.example:{port}")[0] == 404


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["report", "--serve", str(tmp_path / "none")])
    assert error.value.code == 2
    assert "name the folder that holds the runs" in capsys.readouterr().err
