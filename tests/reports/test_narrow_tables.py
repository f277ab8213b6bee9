"""Tables on the screen whose first column has the names of the rows."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from streamrace.studies.table import Table


def test_names_and_values_stay_apart_where_the_screen_is_narrow() -> None:
    said = StringIO()

    Console(file=said, width=40).print(Table("", ["", ""], [("a name of some length", "word " * 20)], sides=True))

    first = said.getvalue().splitlines()[0]
    assert first.startswith("a name of some length word")
