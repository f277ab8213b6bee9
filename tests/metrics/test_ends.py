"""When the work of each step had ended."""

from __future__ import annotations

from streamrace.metrics import EndMetrics
from streamrace.trace.records import Phase, TraceRecord
from tests.metrics.trace import begin, launch


def ends_of(*records: TraceRecord) -> dict[int, int]:
    metric = EndMetrics()
    for record in (begin(), *records):
        metric.feed([record])
    return metric.result()


def test_it_is_when_the_last_work_of_all_up_to_it_ended() -> None:
    found = ends_of(
        launch(0, 0, 50),
        Phase(1, 1, "forward"),
        launch(0, 60, 90, issued=55),
        launch(1, 60, 80, issued=56),
        Phase(1, 1, "step"),
        Phase(2, 1, "forward"),
        launch(1, 80, 85, issued=57),
        Phase(3, 1, "forward"),
        launch(1, 100, 120, issued=58),
    )
    assert found == {0: 50, 1: 90, 2: 90, 3: 120}


def test_work_that_never_ran_has_no_end() -> None:
    assert ends_of(Phase(1, 1, "forward"), launch(0, 5, 9), launch(0, -1, -1)) == {0: 0, 1: 9}
