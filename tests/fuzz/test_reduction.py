"""A program is made smaller by leaving out what is not needed: what stays is as its author wrote it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.fuzz.reduction.modules import NoProgram, imported
from streamrace.fuzz.reduction.names import with_users
from streamrace.fuzz.reduction.search import Files, Reduced, reduce
from streamrace.fuzz.reduction.text import Text
from tests.examples import examples

PROGRAM = '''
    """What it is."""

    # /// catalogue
    # title = "for who runs it"
    # ///

    import os, sys
    from torch import nn, cuda

    # how deep
    depth = 4
    quiet = {
        "é": 1,  # kept with what it is of
        "stage": 3,
        "names": ["a", "b"],
    }

    # what builds it
    def build(n):
        print("building"); model = nn.Sequential(nn.Linear(n, n), nn.Tanh())
        return model


    with cuda.stream(None):
        for step in range(4):
            try:
                result = build(step)  # here
            except ValueError:
                raise
            else:
                print("done")
    for step in range(4):
        keep = 1
    if os.name:
        print(sys.argv)
    elif depth:
        print('other')
'''


def smaller(text: str, holds: Callable[[str], bool], budget: int = 500) -> Reduced:
    return reduce({"p.py": dedent(text).lstrip()}, lambda files: holds(files["p.py"]), budget=budget)


def test_what_is_left_stands_as_it_was_written() -> None:
    needed = ("result = build(step)", "nn.Tanh()", '"stage": 3', "keep = 1")
    found = smaller(PROGRAM, lambda text: all(one in text for one in needed))
    assert found.whole
    assert found.files["p.py"] == dedent("""\
        from torch import nn

        quiet = {
            "stage": 3,
        }

        # what builds it
        def build(n):
            model = nn.Sequential(nn.Tanh())


        for step in range(1):
            result = build(step)  # here
        keep = 1
    """)


def test_what_uses_a_name_goes_with_it() -> None:
    text = Text("import a\nb = a.c()\nd = b + 1\ne = 2\nif d:\n    e += 1\nprint(e)\n")
    gone = with_users(text.tree, text.tree.body[:1])
    assert text.without(gone) == "e = 2\nprint(e)\n"


def test_a_star_may_bind_anything() -> None:
    text = Text("from a import *\nb = c\n")
    assert text.without(with_users(text.tree, text.tree.body[:1])) == "b = c\n"


@pytest.mark.parametrize(
    ("text", "without", "left"),
    [
        ("a = 1; b = 2; c = 3\n", 0, "b = 2; c = 3\n"),
        ("a = 1; b = 2; c = 3\n", 1, "a = 1; c = 3\n"),
        ("a = 1; b = 2; c = 3\n", 2, "a = 1; b = 2\n"),
        ("a = 'ä'; b = 2\n", 1, "a = 'ä'\n"),
        ("# of a\na = 1  # too\n\n\n\n\nb = 2", 0, "b = 2"),
        ("@one\n@two(1)\ndef f(): pass\nb = 2\n", 0, "b = 2\n"),
        ("def f():\n    # why\n    a = 1\nb = 2\n", 1, "def f():\n    # why\n    pass\nb = 2\n"),
        ("for a in b: c = 1\nd = 2\n", 1, "d = 2\n"),
        ("try:\n    a = 1\nfinally:\n    b = 2\n", 2, "try:\n    a = 1\nfinally:\n    pass\n"),
    ],
)
def test_a_statement_goes_with_what_is_its_own(text: str, without: int, left: str) -> None:
    one = Text(text)
    made = one.without([one.statements[without][1]])
    assert made.replace("# why\n    ", "") == left.replace("# why\n    ", "")
    ast.parse(made)


@examples(30)
@given(st.data())
def test_whatever_statements_go_the_rest_is_a_program(data: st.DataObject) -> None:
    one = Text(dedent(PROGRAM).lstrip())
    gone = data.draw(st.sets(st.sampled_from([statement for _, statement in one.statements])))
    made = Text(one.without(gone))
    there = {ast.dump(each) for _, each in one.statements}
    simple = [each for _, each in made.statements if isinstance(each, (ast.Assign, ast.Expr, ast.Import, ast.Return))]
    assert all(ast.dump(each) in there for each in simple)


def test_trials_are_bounded_and_never_the_same_twice() -> None:
    tried: list[str] = []

    def holds(text: str) -> bool:
        tried.append(text)
        return "keep" in text

    assert smaller(PROGRAM, holds, budget=5).whole is False
    assert len(tried) == 5
    tried.clear()
    found = smaller(PROGRAM, holds)
    assert found.whole and found.trials == len(tried) == len(set(tried))


def test_modules_beside_the_script_are_made_smaller_too_and_go_where_nothing_needs_them() -> None:
    files = {"p.py": "import a\nimport b\nprint(a.x)\n", "a.py": "x = 1\ny = 2\n", "b.py": "z = 3\n"}

    def holds(files: Files) -> bool:
        return "import a" in files["p.py"] and "x = 1" in files.get("a.py", "")

    assert reduce(files, holds, budget=100).files == {"p.py": "import a\n", "a.py": "x = 1\n"}


def test_a_script_has_modules_beside_it_and_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, near\nfrom torch import nn\nimport mine.part\nfrom . import none\n")
    (tmp_path / "near.py").write_text("import further, train, deep.er\n")
    (tmp_path / "further.py").write_text("# -*- coding: latin-1 -*-\nname = 'x'\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "part.py").touch()
    found = imported(tmp_path / "train.py")
    assert sorted(found.beside) == ["further.py", "near.py"]
    assert (found.packages, found.installed) == (["mine"], ["os", "torch", "deep.er"])
    assert found.few
    (tmp_path / "further.py").write_text("x = 1\n" * 700)
    assert not imported(tmp_path / "train.py").few
    (tmp_path / "further.py").write_text("x = = 1\n")
    with pytest.raises(NoProgram, match=r"further.py is no program"):
        imported(tmp_path / "train.py")
