"""An error that is one sentence is looked up by its name, without importing it: each name has to be one."""

from __future__ import annotations

from importlib import import_module

import pytest

from streamrace.repro.sessions import sentences


@pytest.mark.parametrize(("module", "name"), [*sentences._REFUSALS, *sentences._FAILURES])
def test_an_error_that_is_one_sentence_is_there(module: str, name: str) -> None:
    error = getattr(import_module(module), name)
    assert issubclass(error, Exception)
    assert sentences.is_one(error.__new__(error), (module, name))
