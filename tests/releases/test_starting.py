"""A release that does not start here says what it lacked, and a program that would import another one is refused."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from streamrace.device.packages import VARIABLE, starting


def release(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> BaseException:
    """What importing a release that consists of ``text`` raises."""
    place = folder / "olden-1.0"
    (place / "olden-1.0.dist-info").mkdir(parents=True)
    (place / "olden-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: olden\nVersion: 1.0\n")
    (place / "olden.py").write_text(text)
    monkeypatch.setenv(VARIABLE, str(place))
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "olden", raising=False)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of any kind
        importlib.import_module("olden").run()
    return raised.value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import nowhere.at_all", "olden 1.0 asks for the module nowhere (olden.py:1), and it is not here: add "
         "--package NAME==VERSION of the package that has nowhere, or take another release"),
        ("import json.six", "olden 1.0 asks for the module json.six (olden.py:1), and it is not here: add "
         "--package json==VERSION of a release of json that has it, or take another release"),
        ("from json import six", "olden 1.0 asks for json.six (olden.py:1), and it is not here: add "
         "--package json==VERSION of a release of json that has it, or take another release"),
        ("import json\ndef run():\n    json.six", "olden 1.0 asks for json.six (olden.py:3), and it is not here: add "
         "--package json==VERSION of a release of json that has it, or take another release"),
        ("try:\n    import nowhere\nexcept ImportError as e:\n    raise SystemError('no nowhere') from e",
         "olden 1.0 asks for the module nowhere (olden.py:2), and it is not here: add "
         "--package NAME==VERSION of the package that has nowhere, or take another release"),
        ("[].g", "olden 1.0 cannot be imported here (olden.py:1, AttributeError: 'list' object has no attribute 'g'): "
         "something that it uses may be newer than it; name an older one with --package NAME==VERSION, or take "
         "another release"),
        ("def run():\n    raise ValueError('of the program')", ""),
    ],
)  # fmt: skip
def test_what_a_release_lacked_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    error = release(tmp_path, text, monkeypatch)
    starting.note_in(tmp_path / "lacked.txt")
    starting.explain(error)
    starting.explain(error)  # of another rank
    assert starting.noted(tmp_path / "lacked.txt") == sentence
    assert capsys.readouterr().err == f"streamrace: {sentence}\n" * 2 * bool(sentence)
    monkeypatch.delenv(VARIABLE)
    starting.explain(error)
    assert capsys.readouterr().err == "", "with the environment's own packages nothing is said"


def test_a_program_beside_a_checkout_would_import_the_checkout(tmp_path: Path) -> None:
    place, checkout = tmp_path / "made" / "olden-1.0", tmp_path / "checkout"
    (place / "olden").mkdir(parents=True)
    (place / "olden" / "__init__.py").write_text("")
    (checkout / "olden").mkdir(parents=True)
    places = {"olden==1.0": place}
    assert starting.hidden([str(checkout), str(place)], places) == "", "a folder of that name is no package"
    (checkout / "olden" / "__init__.py").write_text("")
    assert starting.hidden([str(place), str(checkout)], places) == ""
    assert starting.hidden([str(checkout), str(place)], places) == (
        f"the program would import olden from {checkout}, and not olden==1.0: move the program to a folder of its own, "
        "or take that folder out of the import path"
    )
    assert os.fspath(checkout) in starting.hidden([str(checkout)], places), "the release is not in the path at all"
