"""Shows the progress of a study, by the number of completed dry runs: a bar, or lines without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TimeElapsedColumn


@contextmanager
def counting(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """Provide a callback of ``done, of, what`` that shows the progress."""
    if not console.is_terminal:
        yield lambda done, of, text: console.print(f"  {done}/{of}  {text}", highlight=False)
        return
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("dry runs", total=None)
        yield lambda done, of, text: bar.update(task, total=of, completed=done, description=escape(text))
