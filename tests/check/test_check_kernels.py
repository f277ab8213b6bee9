"""What goes wrong inside of a Triton kernel is told with both lines and the two programs; a right twin is clean."""

from __future__ import annotations

import importlib.util
from textwrap import dedent
from typing import Any

import pytest

from tests.check.conftest import Checking

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: make test-triton"),
]

HEAD = """
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x, out, lock, n, BLOCK: tl.constexpr):
        me = tl.program_id(0)
        at = me * BLOCK + tl.arange(0, BLOCK)
"""
TAIL = """
    x, out = torch.arange(64.0, device="cuda"), torch.zeros(64, device="cuda")
    lock = torch.zeros(2, dtype=torch.int32, device="cuda")
    for _ in range(2):
        kernel[(4,)](x, out, lock, 64, BLOCK=16)
        lock.zero_()
    torch.cuda.synchronize()
"""
HALO = """
        left = tl.load(x + at - 1, at > 0, 0.0)
        tl.store(TARGET + at, left)
"""
SUM = """
        part = tl.load(x + at)
        each = tl.arange(0, BLOCK)
        ADD
"""
LOCKED = """
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out + each, tl.load(out + each) + part)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0SEM)
"""
LAST = """
        tl.store(out + at, tl.load(x + at) * 2)
        tl.debug_barrier()
        if tl.atomic_add(lock, 1SEM) == 3:
            whole = tl.load(out + tl.arange(0, 64))
            tl.store(lock + 1, tl.sum(whole).to(tl.int32))
"""
SCRATCH = """
        row, column = tl.arange(0, 4)[:, None], tl.arange(0, 4)[None, :]
        tl.store(out + me * BLOCK + row * 4 + column, tl.load(x + me * BLOCK + row * 4 + column))
        BARRIER
        tl.store(x + me * BLOCK + row * 4 + column, tl.load(out + me * BLOCK + column * 4 + row))
"""
BEYOND = """
        tl.store(out + at, tl.load(x + at + 8MASK))
"""
SCATTER = """
        tl.store(out + me * BLOCK + tl.arange(0, BLOCK) DIVIDED, tl.load(x + at))
"""


def program(body: str, **words: str) -> str:
    text = dedent(HEAD + body + TAIL)
    for word, stands in words.items():
        text = text.replace(word, stands)
    return text


def line_of(text: str, words: str) -> int:
    return next(at for at, line in enumerate(text.lstrip().splitlines(), 1) if words in line)


def defects(findings: dict[str, Any]) -> list[str]:
    return [one["kind"] for one in findings["checked"].get("kernels", [])]


def test_a_program_that_reads_what_its_neighbour_writes_is_told_with_both_lines_and_programs(check: Checking) -> None:
    text = program(HALO, TARGET="x")
    check.script(text)
    done = check("train.py")
    load, store, launch = (line_of(text, words) for words in ("tl.load(", "tl.store(", "kernel[(4,)]"))
    assert done.status == 5 and done.findings["verdict"] == "kernel", done.out
    assert "all is in order between streams, but nothing orders two programs of a kernel" in done.told
    said = f"train.py:{load} reads an element that program 0 writes at train.py:{store}, and nothing orders the two"
    assert f"{said} (program 1 of the kernel 'kernel', launched at train.py:{launch}, 2 times)" in done.told
    (race,) = (one for one in done.findings["checked"]["kernels"] if one["kind"] == "write-read")
    assert race["programs"] == [[0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    ("body", "words", "kinds"),
    [
        (HALO, {"TARGET": "out"}, []),
        (SUM, {"ADD": "tl.store(out + each, tl.load(out + each) + part)"}, ["write-read", "write-write"]),
        (SUM, {"ADD": "tl.atomic_add(out + each, part)"}, []),
        (SUM, {"ADD": LOCKED, "SEM": ""}, []),
        (SUM, {"ADD": LOCKED, "SEM": ", sem='relaxed'"}, ["write-read", "write-write"]),
        (LAST, {"SEM": ""}, []),
        (LAST, {"SEM": ", sem='relaxed'"}, ["write-read"]),
        (BEYOND, {"MASK": ""}, ["outside"]),
        (BEYOND, {"MASK": ", at + 8 < n"}, []),
        (SCATTER, {"DIVIDED": "// 2"}, ["repeated"]),
        (SCATTER, {"DIVIDED": ""}, []),
    ],
    ids=[
        "apart",
        "sum",
        "atomic sum",
        "lock",
        "relaxed lock",
        "last",
        "relaxed last",
        "no mask",
        "mask",
        "twice",
        "once",
    ],
)
def test_each_defect_is_told_and_its_right_twin_is_clean(
    check: Checking, body: str, words: dict[str, str], kinds: list[str]
) -> None:
    check.script(program(body, **words))
    done = check("train.py")
    assert defects(done.findings) == kinds, done.out
    assert (done.status, done.findings["verdict"]) == ((5, "kernel") if kinds else (0, "clean"))


@pytest.mark.parametrize("barrier", [False, True])
def test_a_missing_barrier_is_a_warning_and_the_verdict_stays_clean(check: Checking, barrier: bool) -> None:
    check.script(program(SCRATCH, BARRIER="tl.debug_barrier()" if barrier else "pass"))
    done = check("train.py")
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out
    assert defects(done.findings) == ([] if barrier else ["hazard"])
    assert (
        "Warnings about kernels:" in done.told and "Put tl.debug_barrier() between the two." in done.told
    ) != barrier


def test_a_known_defect_is_marked_in_the_kernel_and_does_not_count(check: Checking) -> None:
    text = program(SCATTER, DIVIDED="// 2")
    check.script(text.replace("tl.load(x + at))", "tl.load(x + at))  # stream-race: ok either value will do"))
    done = check("train.py")
    assert done.status == 0 and defects(done.findings) == ["repeated"], done.out


def test_other_tools_get_an_error_for_a_race_and_a_warning_for_a_hazard(check: Checking) -> None:
    check.script(program(HALO, TARGET="x"))
    done = check("--format", "github", "train.py")
    assert "::error file=train.py,line=" in done.out and "title=stream-race/kernel%3A" in done.out
    assert "::warning file=train.py,line=" in done.out and "title=stream-race/kernel-hazard%3A" in done.out
