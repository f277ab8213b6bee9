"""The papers have a command line of their own, and that of the package does not know their commands."""

from __future__ import annotations

import re

import pytest

from papers.__main__ import PAPERS, main
from streamrace.repro.__main__ import main as streamrace
from streamrace.repro.commands.table import COMMANDS


def test_their_command_line_lists_each_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    told = capsys.readouterr().out
    assert told.startswith("Usage: python -m papers ")
    assert re.findall(r"^  ([a-z]+) ", told.partition("Commands:\n")[2], re.MULTILINE) == list(PAPERS.commands)


@pytest.mark.parametrize("name", PAPERS.commands)
def test_the_package_has_none_of_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name not in COMMANDS
    with pytest.raises(SystemExit) as ended:
        streamrace([name])
    assert ended.value.code == 2
    assert f"No such command '{name}'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sweep", "nothing"])
def test_nor_have_they_the_packages(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name])
    assert ended.value.code == 2
    assert f"No such command '{name}'" in capsys.readouterr().err
