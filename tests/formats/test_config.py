"""``[tool.streamrace]`` of a pyproject.toml: the options' own names, and a sentence for whatever is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamrace.device.scripts import WrongUse
from streamrace.repro.commands import config


def said(folder: Path, text: str, command: str = "check") -> dict[str, Any]:
    (folder / "pyproject.toml").write_text(text)
    return config.defaults(command, folder)


def test_options_by_their_names(tmp_path: Path) -> None:
    text = """
    [tool.streamrace]
    ranks = 2
    slow = ["kernel:aten::mm=20"]
    network = 100
    format = "sarif"
    [tool.streamrace.check]
    ranks = 4
    report = true
    [tool.streamrace.report]
    port = 0
    """
    of_check = {"ranks": 4, "slow": ["kernel:aten::mm=20"], "network": 100, "report": True, "form": "sarif"}
    assert said(tmp_path, text) == of_check
    assert said(tmp_path, text, "report") == {"port": 0}
    assert said(tmp_path, text, "kernels") == {} == said(tmp_path, text, "watch") == said(tmp_path, text, "nothing")


def test_a_path_begins_at_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    (tmp_path / "pyproject.toml").write_text('[tool.streamrace]\nbaseline = "known.json"\n')
    assert config.defaults("check", inner) == {"baseline": "../../known.json"}


def test_the_nearest_table_is_read_and_none_above_the_checkout(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    (inner / "c").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.streamrace]\nranks = 2\n")
    (inner / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert config.defaults("check", inner / "c") == {"ranks": 2}
    (inner / "pyproject.toml").write_text("[tool.streamrace]\nranks = 3\n")
    assert config.defaults("check", inner / "c") == {"ranks": 3}
    (inner / "pyproject.toml").unlink()
    (tmp_path / "a" / ".git").mkdir()
    assert config.defaults("check", inner / "c") == {}


def test_a_variable_names_another_file_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.streamrace]\nranks = 2\n")
    (tmp_path / "ci.toml").write_text("[tool.streamrace]\nranks = 3\n")
    monkeypatch.setenv(config.VARIABLE, str(tmp_path / "ci.toml"))
    assert config.defaults("check", tmp_path) == {"ranks": 3}
    monkeypatch.setenv(config.VARIABLE, "")
    assert config.defaults("check", tmp_path) == {}
    monkeypatch.setenv(config.VARIABLE, "nowhere.toml")
    with pytest.raises(WrongUse, match="names nowhere.toml, which does not exist"):
        config.defaults("check", tmp_path)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("rank = 2", "[tool.streamrace] has 'rank', which is no option: is it 'ranks'?"),
        ("keep_in = 'x'", "has 'keep_in', which is no option"),
        ("module = true", "has 'module', which is no option"),
        ("[tool.streamrace.chek]", "has 'chek', which is no option: is it 'check'?"),
        ("check = 1", "'check' is a command, whose options are a table"),
        ("[tool.streamrace.check]\nform = 'x'", "[tool.streamrace.check] has 'form', which is no option: is it"),
        ("[tool.streamrace.watch]", "streamrace watch takes no options"),
        ("ranks = 'two'", "[tool.streamrace] ranks is a whole number, not 'two'"),
        ("ranks = true", "ranks is a whole number, not true or false"),
        ("ranks = 0", "ranks: 0 is not in the range x>=1."),
        ("report = 1", "report is true or false, not 1"),
        ("slow = 'x'", "slow is a list of text, not 'x'"),
        ("slow = [1]", "slow is text, not 1"),
        ("ranks = {}", "ranks is a whole number, not a table"),
        ("output = []", "output is text, not a list"),
        ('output = "a\\u0000"', "output is no path: "),
        ("format = 'xml'", "format: 'xml' is not one of"),
        ("network = [[1]]", "network is a number, not a list"),
        ("ranks = ", "cannot be read: it is not TOML"),
    ],
)
def test_what_is_no_option_is_a_sentence(table: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUse) as error:
        said(tmp_path, f"[tool.streamrace]\n{table}\n")
    assert sentence in str(error.value) and "pyproject.toml" in str(error.value)


def test_a_table_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="is not a table"):
        said(tmp_path, "[tool]\nstreamrace = 1\n")
    with pytest.raises(WrongUse, match=r"\[tool.stream-races\] is \[tool.streamrace\] now"):
        said(tmp_path, "[tool.stream-races]\nranks = 2\n")
    assert said(tmp_path, "tool = 1\n") == {}
