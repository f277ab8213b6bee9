"""Entries of a block are found by place, however many there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors.order.access_history import AccessHistory, Entry
from streamrace.trace.records import Launch, Phase
from tests.examples import examples

PHASE = Phase(0, 0, "init")
RANGE = st.tuples(st.integers(0, 12).map(lambda place: 16 * place), st.sampled_from([1, 2, 3, 8, 9, 64, 200]))


def entry(lo: int, length: int, op: int) -> Entry:
    return lo, lo + length, None, 0, op, Launch(op, 0, "k", (), (), 0, 0, 0, 0), PHASE


@examples(200)
@given(
    ranges=st.lists(RANGE, min_size=1, max_size=60) | st.lists(RANGE, min_size=20, max_size=60),
    drops=st.lists(st.integers(0, 59), max_size=60),
    query=RANGE,
    in_place=st.sets(st.integers(0, 59)),
)
def test_as_a_plain_list(
    ranges: list[tuple[int, int]], drops: list[int], query: tuple[int, int], in_place: set[int]
) -> None:
    """``in_place``: those that take the place of one that begins where they do, a longer or a shorter one."""
    history = AccessHistory()
    plain: list[Entry] = []
    for op, (lo, length) in enumerate(ranges):
        new = entry(lo, length, op)
        dropped = [plain[at] for at in sorted({at for at in drops[op : op + 2] if at < len(plain)})]
        if op in in_place:
            dropped = [old for old in plain if old[0] == lo][:1]
        history.put(new, dropped or None)
        plain = [old for old in plain if old not in dropped] + [new]
        assert sorted(old[4] for old in history.everything()) == sorted(old[4] for old in plain)
    lo, hi = query[0], query[0] + query[1]
    overlapping = {old[4] for old in plain if old[0] < hi and lo < old[1]}
    assert overlapping <= {old[4] for old in history.search(lo, hi)}
    for old in plain:  # by its first byte, and by its last
        assert old in history.search(old[0], old[0] + 1) and old in history.search(old[1] - 1, old[1])
    for old in plain:
        history.drop([old])
    assert history.everything() == []
    assert history.rows is None


def test_a_search_visits_neighbours_only() -> None:
    history = AccessHistory()
    for part in range(1000):
        history.put(entry(8 * part, 8, part), None)
    history.put(entry(0, 8000, 1000), None)
    found = {old[4] for old in history.search(4000, 4008)}
    assert {500, 1000} <= found
    assert len(found) < 10
