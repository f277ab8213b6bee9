"""A program of one's own, under ``streamrace check``: what comes out, and what is said of it in the end."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

SUMS = """
    import sys
    import torch

    side = torch.cuda.Stream()
    a = torch.ones(4, 4, device="cuda")
    torch.cuda.synchronize()
    b = a @ a
    with torch.cuda.stream(side):
        if "wait" in sys.argv:
            side.wait_stream(torch.cuda.default_stream())
        c = b.sum()
    torch.cuda.synchronize()
    print("the sum is", c.item())
"""

LOGS = """
    import torch

    side = torch.cuda.Stream()
    weights = torch.zeros(8, device="cuda")
    for step in range(3):
        weights += 1
        loss = weights.sum()
        print(f"step {step}: {loss.item()}")
        with torch.cuda.stream(side):
            copy = weights * 2
        torch.cuda.current_stream().wait_stream(side)
"""


def test_a_race_is_told_with_both_lines_and_the_wait_that_is_missing(check: Any) -> None:
    done = check("--report", check.script(SUMS))
    assert done.status == 1, done.err
    assert done.out.startswith("the sum is 64.0\n")  # as ever: by luck
    (race,) = done.findings["races"]
    assert [(race[side]["kernel"], race[side]["stack"][0]["line"]) for side in ("first", "second")] == [
        ("aten::mm", 7),
        ("aten::sum", 11),
    ]
    for words in ("verdict: race", "train.py:7 <module>", "train.py:11 <module>", race["missing_wait"]):
        assert words in done.told
    assert "Page:  runs/it/report/index.html" in done.out
    assert "train.py:7" in (check.folder / "runs/it/report/index.html").read_text()
    assert [file.name for file in sorted((check.folder / "runs/it/trace").iterdir())] == ["rank0.trace"]


STALE = """
    import torch
    from streamrace.detectors.values.answers import answer

    weight, side = torch.ones(64, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        copy = weight * 1
    torch.cuda.default_stream().wait_stream(side)
    before = weight.clone()
    weight += 1
    torch.cuda.synchronize()
    answer("weight", weight, before + 1)
    answer("its copy", copy, weight, [before])
"""


def test_a_wrong_value_that_no_race_explains_is_told_by_its_kind(check: Any) -> None:
    done = check("--report", check.script(STALE))
    assert done.status == 5, done.err
    assert done.findings["verdict"] == "stale"
    assert done.findings["races"] == []
    assert [(one["name"], one["kind"]) for one in done.findings["checked"]["answers"]] == [
        ("weight", "right"),
        ("its copy", "stale"),
    ]
    said = "64 of 64 elements are wrong, the first (0) is 1 instead of 2: they hold the version before"
    assert "Stale: every two accesses" in done.told
    assert said in done.told
    assert said in (check.folder / "runs/it/report/index.html").read_text().replace("<wbr>", "")
    assert said in (check.folder / "runs/it/report/report.md").read_text()


def test_with_its_wait_the_same_program_is_clean(check: Any) -> None:
    done = check(check.script(SUMS), "wait")
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.err
    assert done.findings["checked"].pop("virtual_ns") > 0
    assert done.findings["checked"] == {
        "seen": "4 launches on 2 streams of 1 rank",
        "held": [],
        "unexamined": 0,
        "unexercised": [],
        "unseen": [],
        "own": {},
        "status": 0,
        "gone": None,
    }
    assert "Clean: every two accesses" in done.told
    assert "streamrace report runs/it" in done.out


def test_what_is_slow_decides_which_value_comes_out(check: Any) -> None:
    done = check("--slow", "kernel:aten::mm=1000", check.script(SUMS))
    assert done.status == 1
    assert not done.out.startswith("the sum is 64.0\n")
    assert [race["manifested"] for race in done.findings["races"]] == [1]
    assert done.findings["scenario"] == {"program": "train.py", "ranks": 1, "slow": {"kernel:aten::mm": 1000.0}}


def test_what_only_a_read_of_the_loss_orders_is_fragile(check: Any) -> None:
    done = check(check.script(LOGS))
    assert (done.status, done.findings["verdict"], done.findings["races"]) == (0, "fragile", [])
    assert "Held only by the read at train.py:8 <module>. Without it: write-read" in done.told
    (held,) = done.findings["checked"]["held"]
    (race,) = held["races"]
    assert [race[side]["stack"][0]["line"] for side in ("first", "second")] == [6, 10]


def test_what_is_fragile_fails_a_strict_check_unless_it_is_known(check: Any) -> None:
    done = check("--strict", check.script(LOGS))
    assert (done.status, done.findings["verdict"], done.findings["checked"]["status"]) == (1, "fragile", 1)
    assert "This fails the check: --strict counts what is fragile." in done.out
    assert check("--overwrite", "--strict", "--write-baseline", "known.json", check.script(LOGS)).status == 0
    done = check("--overwrite", "--strict", "--baseline", "known.json", "--format", "json", check.script(LOGS))
    told = json.loads(done.out)
    assert (done.status, told["status"], told["verdict"]) == (0, 0, "fragile")
    assert "--strict" not in done.err
    (check.folder / "pyproject.toml").write_text("[tool.streamrace]\nstrict = true\n")
    assert check("--overwrite", check.script(LOGS)).status == 1
    assert check("--overwrite", check.script("import torch\nprint(torch.ones(3, device='cuda').sum())\n")).status == 0


def test_what_was_never_exercised_is_named(check: Any) -> None:
    done = check(
        check.script("""
            import torch

            idle = torch.cuda.Stream()
            print(torch.ones(3, device="cuda").sum().item())
        """)
    )
    assert (done.status, done.findings["verdict"]) == (0, "clean")
    assert done.findings["checked"]["unexercised"] == [
        "all work ran on one stream, whose order nothing can break",
        "stream 1, made at train.py:3 <module>, was given no work",
    ]
    assert "Clean for the part that ran" in done.told


def test_a_program_that_gives_the_device_nothing_is_not_called_clean(check: Any) -> None:
    done = check(check.script("print('hello')"))
    assert (done.status, done.findings["verdict"]) == (4, "unknown")
    assert "Unknown: nothing was issued to the device" in done.told


PROGRAM = """
    import sys, threading
    import torch
    from beside import word

    print(__name__, sys.argv, word, sys.stdin.read())
    late = torch.cuda.Stream()

    def work():
        with torch.cuda.stream(late):
            torch.ones(3, device="cuda").add_(1)

    threading.Thread(target=work).start()
"""


@pytest.mark.parametrize("module", [False, True])
def test_the_program_has_its_arguments_its_neighbours_its_input_and_its_threads(check: Any, module: bool) -> None:
    check.script("word = 'beside'", "beside.py")
    check.script(PROGRAM)
    name = ["-m", "train"] if module else ["train.py"]
    done = check(*name, "--ranks", "3", said="said")
    assert done.out.startswith(f"__main__ ['{check.folder / 'train.py'}', '--ranks', '3'] beside said\n"), done.err
    assert done.findings["checked"]["seen"] == "2 launches on 1 stream of 1 rank"


ENDS = """
    import os, signal, sys
    import torch

    ones = torch.ones(3, device="cuda")

    def inner():
        raise ValueError("what the script says")

    match sys.argv[1]:
        case "raise":
            inner()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leave":
            os._exit(0)
        case "interrupt":
            os.kill(os.getppid(), signal.SIGINT)
            signal.pause()
        case text:
            sys.exit(int(text) if text.isdecimal() else text)
"""


@pytest.mark.parametrize(
    ("how", "status", "why"),
    [
        ("raise", 3, "it ended with exit status 1"),
        ("3", 3, "it ended with exit status 3"),
        ("a word of farewell", 3, "it ended with exit status 1"),
        ("kill", 3, "it was killed by SIGKILL"),
        ("leave", 4, "it ended its process itself, with exit status 0"),
        ("interrupt", 130, "it was interrupted"),
        ("0", 0, None),
    ],
)
def test_how_a_program_ends_is_told(check: Any, how: str, status: int, why: str | None) -> None:
    done = check(check.script(ENDS), how)
    assert (done.status, done.findings["failure"]) == (status, why), done.err
    assert done.findings["verdict"] == ("unknown" if why else "clean")
    if how == "raise":
        lines = done.err.splitlines()
        assert [line.strip() for line in lines if line.startswith("  File")] == [
            f'File "{check.folder}/train.py", line {line}, in {where}'
            for line, where in ((11, "<module>"), (7, "inner"))
        ]
        assert lines[-1] == "ValueError: what the script says"
        assert done.err.count("Traceback") == 1
    elif how == "a word of farewell":
        assert done.err == f"{how}\n"


def test_a_race_before_the_end_is_told_all_the_same(check: Any) -> None:
    done = check(check.script(SUMS + "    raise SystemExit(5)\n"))
    assert (done.status, done.findings["verdict"], done.findings["failure"]) == (
        3,
        "race",
        "it ended with exit status 5",
    )


def test_the_example_of_the_documentation_says_what_the_documentation_says(check: Any) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "check.md").read_text(encoding="utf-8")
    program, output = re.findall(
        r"<!-- (?:train\.py|the output of: streamrace check --name train train\.py) -->\n```\w*\n(.*?)```",
        page,
        re.DOTALL,
    )
    activated = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = check("--name", "train", check.script(program), COLUMNS="100", PATH=activated)
    assert (done.status, done.out) == (0, output)
    quiet = check.script("".join(line for line in program.splitlines(keepends=True) if "print" not in line))
    assert check(quiet).status == 1
