"""Faults inside of kernels are one finding for each pair of lines, with where the kernel was launched."""

from __future__ import annotations

import pytest

from streamrace.detectors import KernelDefect
from streamrace.detectors.grid.faults import KernelFaults
from streamrace.trace.records import Access, Frame, KernelFault, Launch, Stack, TraceRecord

STACK = Stack(4, (Frame("lib/ops.py", 40, "call"), Frame("train.py", 7, "<module>")))
ONE, OTHER = ("k.py", 10, "kernel"), ("k.py", 12, "kernel")
NONE = ("", 0, "")


def launch(op: int) -> Launch:
    return Launch(op, 0, "triton::kernel", (), (Access(1, 0, 8),), 4, 0, 0, 1)


def found(*records: TraceRecord, rank: int = 0) -> list[KernelDefect]:
    detector = KernelFaults()
    detector.feed(rank, [STACK, *records])
    return detector.findings()


def test_launches_with_one_fault_are_one_finding_and_hazards_come_last() -> None:
    race = KernelFault(1, "write-read", "read", ONE, OTHER, (0, 0, 0, 2, 1, 0))
    hazard = KernelFault(1, "hazard", "write", ONE, OTHER, (0, 0, 0, 0, 0, 0))
    first, last = found(launch(1), launch(2), hazard, race, race._replace(op=2))
    assert (first.kind, first.count, first.ranks, first.warns) == ("write-read", 2, (0,), False)
    assert (last.kind, last.count, last.warns) == ("hazard", 1, True)
    assert first.programs == ((0, 0, 0), (2, 1, 0)) and first.stack == STACK.frames


def test_faults_of_several_ranks_are_one_finding() -> None:
    detector = KernelFaults()
    for rank in (1, 0):
        fault = KernelFault(1, "repeated", "write", NONE, OTHER, (3, 0, 0, 3, 0, 0))
        detector.feed(rank, [STACK, launch(1), fault])
    (defect,) = detector.findings()
    assert defect.ranks == (0, 1) and defect.count == 2


@pytest.mark.parametrize(
    ("kind", "verb", "first", "sentence"),
    [
        ("write-write", "write", ONE,
         "k.py:12 writes an element that program 0 writes at k.py:10, and nothing orders the two "
         "(program (2, 1) of the kernel 'kernel', launched at lib/ops.py:40). Give each program elements of its own, "
         "or use an atomic operation that orders them"),
        ("read-write", "write", ONE,
         "k.py:12 writes an element that program 0 reads at k.py:10, and nothing orders the two "
         "(program (2, 1) of the kernel 'kernel', launched at lib/ops.py:40). Give each program elements of its own, "
         "or use an atomic operation that orders them"),
        ("outside", "read", NONE,
         "k.py:12 reads outside of the memory of all arguments, which is left out (program (2, 1) of the kernel "
         "'kernel', launched at lib/ops.py:40). Mask the access"),
        ("repeated", "write", NONE,
         "k.py:12 stores different values into one element by one store, and which of them stays is undefined "
         "(program (2, 1) of the kernel 'kernel', launched at lib/ops.py:40). Use an atomic operation, or combine the "
         "values before"),
        ("hazard", "read", ONE,
         "k.py:12 reads an element that another thread of the program accesses at k.py:10 (program "
         "(2, 1) of the kernel 'kernel', launched at lib/ops.py:40). Put tl.debug_barrier() between the two"),
    ],
)  # fmt: skip
def test_a_sentence_has_both_lines_the_programs_the_launch_and_the_cure(
    kind: str, verb: str, first: tuple[str, int, str], sentence: str
) -> None:
    (defect,) = found(launch(1), KernelFault(1, kind, verb, first, OTHER, (0, 0, 0, 2, 1, 0)))
    assert defect.sentence() == sentence
