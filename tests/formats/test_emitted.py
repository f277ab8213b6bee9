"""A race as a test for pytest: a file that a person reads, and that holds whatever names and texts there are."""

from __future__ import annotations

import ast
import unicodedata
from base64 import b64decode
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors.order.races import Side
from streamrace.reports.formats.regression_test import EmittedTest, literal, name_of, text
from streamrace.trace.records import Frame
from tests.examples import examples
from tests.formats.checked_runs import race

STRANGE = ('"""', "\\", 'a"', "\r\n", "\x1b[2J", "\u202e", "", "'''\n")
TEXT = st.text(max_size=30) | st.sampled_from(STRANGE)
PROGRAM = "import torch\n\nx = 'a\\n'\n"


def emitted(**changes: Any) -> EmittedTest:
    fields: dict[str, Any] = {
        "race": race(),
        "program": PROGRAM,
        "name": "train.py",
        "between": ("train.py:step", "stage3.py:Optimizer.step"),
        "timing": "t1,0/0/aten::add/2+8us",
        "reference": "t1",
        "harm": "harmful",
        "says": "in the opposite order, the loss differs",
        "releases": {"deepspeed": "0.13.4"},
        "lines": (47, 3),
    }
    return EmittedTest(**fields | changes)


def test_the_file_is_what_a_person_would_write() -> None:
    assert (
        text(emitted(about="Two streams.", ranks=2))
        == '''\
"""The mul in step has to wait for the add in step.

Two streams.

Fails with deepspeed 0.13.4:

    first  write by aten::add on stream 'default'
      train.py:7 step
    second read by aten::mul on stream 'side'
      deepspeed/runtime/zero/stage3.py:120 Optimizer.step

Stream 'side' never waits for stream 'default' after add (train.py:7 step). Harmful: in the opposite
order, the loss differs.

It asserts that the program has no race in any timing, between the two functions or elsewhere (a fix
may move it): that is by happens-before, for the branches that the program takes. It also asserts
that the program reads the same values in the timing below as in the plain one. If a fix moves the
work that this timing delays, the first still holds, and a warning says that nothing was delayed.

Runs on 2 processes with a simulated GPU each: pip install pytest 'streamrace[watch]'. The program
is what is left of 47 lines, 3, that show the race.
"""

from streamrace import check_program

PROGRAM = """\\
import torch

x = 'a\\\\n'
"""


def test_mul_in_step_waits_for_add_in_step():
    check_program(
        PROGRAM,
        name="train.py",
        ranks=2,
        between=("train.py:step", "stage3.py:Optimizer.step"),
        timing="t1,0/0/aten::add/2+8us",
    )
'''
    )


def test_the_name_of_memory_that_is_used_again_says_that() -> None:
    read = Side("aten::_copy_", "read", "side", stack=(Frame("lib/a.py", 3, "Make.<locals>.pack (backward)"),))
    write = Side("aten::mm", "write", "default", stack=(Frame("train.py", 3, "<module>"),))
    one = emitted(race=replace(race(), kind="reused", first=read, second=write))
    assert name_of(one) == "test_copy_in_pack_keeps_its_memory"
    assert name_of(replace(one, race=replace(one.race, kind="read-write"))) == (
        "test_mm_in_the_program_waits_for_copy_in_pack"
    )


@examples(200)
@given(TEXT)
def test_whatever_a_text_holds_its_literal_is_the_text_and_shows_no_control_character(inner: str) -> None:
    made = literal(inner)
    assert ast.literal_eval(made) == inner
    assert not {"Cc", "Cf", "Cs", "Zl", "Zp"} & {unicodedata.category(one) for one in made if one not in "\n\t"}


@examples(100)
@given(texts=st.lists(TEXT, min_size=9, max_size=9))
def test_whoever_names_things_the_file_says_no_more_than_the_call(texts: list[str]) -> None:
    kernel, function, file, name, module, argument, about, says, stream = texts
    side = Side(kernel, "write", stream, stack=(Frame(file, 3, function),))
    one = emitted(
        race=replace(race(), first=side), program=about, name=name, modules={module: says, f"{module}2": file},
        arguments=[argument], about=about, says=says, between=(file, function), beside=[(name, about)],
        timing=stream, reference=kernel, data={about: says.encode(errors="replace"), f"{about}2": b"\xff"},
        elsewhere=[name], releases={kernel: stream}, needed=[module],
    )  # fmt: skip
    made = ast.parse(text(one))
    kinds = [type(statement) for statement in made.body]
    assert kinds == [ast.Expr, *[ast.ImportFrom] * 2, *[ast.Assign] * 5, ast.FunctionDef]
    calls: list[Any] = []
    namespace: dict[str, Any] = {}
    exec(compile(made, "test", "exec"), {"__builtins__": {"__import__": _giving(calls)}}, namespace)
    test = namespace.pop(name_of(one))
    test.__globals__.update(namespace)
    test()
    assert calls == [
        (
            (about,),
            {
                "name": name, "modules": {module: says, f"{module}2": file}, "arguments": [argument],
                "files": {about: says.encode(errors="replace").decode(), f"{about}2": b"\xff"},
                "between": (file, function), "beside": [(name, about)],
                "timing": stream, **({} if kernel == "t1" else {"reference": kernel}),
            },
        )
    ]  # fmt: skip


def _giving(calls: list[Any]) -> Any:
    """``from streamrace import check_program`` gives a function that keeps how it is called."""
    fake = ModuleType("streamrace")
    vars(fake)["check_program"] = lambda *words, **named: calls.append((words, named))
    vars(fake)["b64decode"] = b64decode
    return lambda *_: fake


@pytest.mark.parametrize("name", ["_sharded.py", "2.py", "ä.py", "program.py"])
def test_a_module_has_a_constant_of_its_own(name: str) -> None:
    made = ast.parse(text(emitted(modules={name: "x = 1\n"})))
    (constant,) = [one.targets[0].id for one in made.body if isinstance(one, ast.Assign)][1:]  # type: ignore[attr-defined]
    assert constant.isidentifier() and constant != "PROGRAM"
    assert constant.isupper()
