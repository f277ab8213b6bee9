"""Where a line may be put beside a statement, and where nobody knows how often it would be executed."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from streamrace.repro.sessions.fixing import statements
from streamrace.repro.sessions.fixing.statements import Module, Statement, find
from streamrace.trace.records import Frame

TEXT = """
import os
import torch as th
import sys

side = th.cuda.Stream()


class Engine:
    def step(self, x, *, out=None):
        if x is None:
            return
        elif out:
            out.add_(x)
        y = x.mul(
            2,
        )
        with th.cuda.stream(self.side):
            with th.cuda.stream(side):
                self.total.add_(y)
        for one in y: one.add_(1)
        while next(x):
            x.add_(1)
        z = [one.add(1) for one in x]; z = z[0]
        return th.cat([x, y])

    def other(self):
        def inner():
            self.total.add_(1)
        return inner()
"""
LINES = dedent(TEXT).strip("\n").split("\n")


@pytest.fixture(scope="module")
def module() -> Module:
    text = "\n".join(LINES)
    return Module("lib/engine.py", Path("/lib/engine.py"), LINES, ast.parse(text), ended=True)


def at(module: Module, text: str, function: str = "Engine.step") -> Statement | None:
    (line,) = [number for number, one in enumerate(LINES, 1) if text in one]
    return find(Frame("lib/engine.py", line, function), module)


def test_a_statement_of_several_lines_is_one(module: Module) -> None:
    found = at(module, "            2,")
    assert found is not None
    assert (LINES[found.first - 1].strip(), LINES[found.last - 1].strip()) == ("y = x.mul(", ")")
    assert (found.front, found.behind, found.indent) == (True, True, " " * 8)


@pytest.mark.parametrize(
    ("text", "front", "behind"),
    [
        ("return th.cat", True, False),
        ("if x is None", True, False),
        ("elif out:", False, False),
        ("for one in y: one", False, False),
        ("while next", True, True),
        ("z = [one.add", False, False),
    ],
)
def test_not_behind_a_return_nor_into_a_line_of_two_statements(
    module: Module, text: str, front: bool, behind: bool
) -> None:
    found = at(module, text)
    assert found is not None
    assert (found.front, found.behind) == (front, behind)


def test_a_function_of_another_name_is_not_guessed(module: Module) -> None:
    assert at(module, "return th.cat", "Engine.other") is None
    assert at(module, "return th.cat", "Engine.step.<locals>.<lambda>") is None
    assert at(module, "import sys", "<module>") is not None
    assert at(module, "            self.total.add_(1)", "Engine.other.<locals>.inner") is not None


def test_streams_that_are_made_current_are_known_by_their_names(module: Module) -> None:
    found = at(module, "self.total.add_(y)")
    assert found is not None
    assert [one.stream for one in found.switches] == ["side", "self.side"]
    inner = at(module, "            self.total.add_(1)", "Engine.other.<locals>.inner")
    other = at(module, "return inner()", "Engine.other")
    assert inner is not None
    assert other is not None
    assert other.may_say("side", found)
    assert other.may_say("self.side", found)
    assert not inner.may_say("self.side", found)  # whose self that is, its own frame does not say
    assert not other.may_say("y.side", found)


def test_what_comes_first_in_each_call_is_told_from_what_may_not_come(module: Module) -> None:
    first, within, last = at(module, "y = x.mul("), at(module, "self.total.add_(y)"), at(module, "return th.cat")
    guarded = at(module, "out.add_(x)")
    assert first is not None
    assert within is not None
    assert last is not None
    assert guarded is not None
    assert first.always_before(within)
    assert first.always_before(last)
    assert not within.always_before(last)  # it is one: the with is always executed, which is not looked into
    assert not guarded.always_before(last)
    assert not last.always_before(first)


def test_torch_has_the_name_that_the_module_gives_it(module: Module) -> None:
    assert module.torch == ("th", 4)
    assert module.top == 4
    assert statements.read("no.py", Path("/nowhere/no.py")) is None


def test_tensors_are_guessed_by_what_is_called_and_what_is_passed_on(module: Module) -> None:
    found = at(module, "self.total.add_(y)")
    assert found is not None
    assert found.tensors() == ["self.total", "y"]


@pytest.mark.parametrize(
    ("text", "top"),
    [
        ('"""A docstring."""\nfrom __future__ import annotations\n\nimport os\n\nx = 1\n', 5),
        ("# a licence\n\nimport os\nimport sys\nx = 1\nimport json\n", 5),
        ("# a licence\nx = 1\n", 2),
        ("", 2),
    ],
)
def test_a_further_import_stands_behind_the_first_ones(text: str, top: int) -> None:
    module = Module("a.py", Path("/a.py"), text.removesuffix("\n").split("\n"), ast.parse(text), ended=True)
    assert module.top == top
    assert module.torch is None


MADE_BEFORE = """
import torch
from contextlib import nullcontext


class Group:
    def start(self, overlap):
        if overlap:
            context = torch.cuda.stream(self.own)
        else:
            context = nullcontext()
        with context, torch.no_grad():
            self.reduce()
        with unknown:
            self.reduce()
"""


def test_a_stream_that_is_made_current_by_a_name_is_looked_up() -> None:
    lines = MADE_BEFORE.strip("\n").split("\n")
    module = Module("g.py", Path("/g.py"), lines, ast.parse("\n".join(lines)), ended=True)
    head = find(Frame("g.py", 11, "Group.start"), module)
    body = find(Frame("g.py", 12, "Group.start"), module)
    other = find(Frame("g.py", 14, "Group.start"), module)
    assert head is not None
    assert body is not None
    assert other is not None
    assert ([one.stream for one in head.inner], head.switches) == (["self.own"], ())
    assert ([one.stream for one in body.switches], body.inner) == (["self.own"], ())
    assert not other.switches
    assert head.other_stream
    assert not body.other_stream
