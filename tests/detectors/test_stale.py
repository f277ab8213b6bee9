"""Stale: which version of a parameter is used, told from checksums."""

from __future__ import annotations

from detectors import Stale, Values, find_stale


def values(*uses: tuple[int, str, tuple[int, ...]]) -> Values:
    """One rank's uses of ``w``: step, phase, a checksum for each of its two parts."""
    run = Values()
    run.add(0, [], [(step, 1, phase, "w", sums, 0, 0.0) for step, phase, sums in uses])
    return run


TRUTH = values((1, "forward", (10, 11)), (2, "forward", (20, 21)), (3, "forward", (30, 31)))


def test_a_backward_pass_that_keeps_the_first_version() -> None:
    run = values(
        (1, "forward", (10, 11)),
        (1, "backward", (10, 11)),
        (2, "forward", (20, 21)),
        (2, "backward", (10, 11)),
    )
    found = find_stale(run, TRUTH)
    assert isinstance(found, Stale)
    assert (found.step, found.phase, found.version, found.edited) == (2, "backward", 1, False)
    assert found.sentence() == "w in backward of step 2, micro-batch 1, holds the values of step 1"


def test_one_part_is_enough() -> None:
    run = values((1, "forward", (10, 11)), (2, "forward", (20, 21)), (2, "backward", (20, 11)))
    found = find_stale(run, TRUTH)
    assert found is not None
    assert found.version == 1


def test_an_edit_that_the_forward_pass_does_not_see() -> None:
    run = values((1, "forward", (10, 11)), (1, "edit", (5, 6)), (2, "forward", (5, 6)), (2, "backward", (5, 6)))
    found = find_stale(run, TRUTH)
    assert found is not None
    assert (found.step, found.phase, found.version, found.edited) == (2, "forward", 1, True)


def test_values_that_never_were_a_version_are_not_stale() -> None:
    """Poison, zeros, a mixture: that is what a race delivers."""
    assert find_stale(values((1, "forward", (10, 11)), (1, "backward", (66, 11))), TRUTH) is None


def test_a_parameter_that_races_is_left_to_the_race() -> None:
    run = values((1, "forward", (10, 11)), (2, "forward", (20, 21)), (2, "backward", (10, 11)))
    assert find_stale(run, TRUTH, racing={"w"}) is None


def test_a_step_that_changes_nothing_is_not_stale() -> None:
    """A skipped step: the same values again are the right ones."""
    run = values((1, "forward", (10, 11)), (2, "forward", (10, 11)), (2, "backward", (10, 11)))
    truth = values((1, "forward", (10, 11)), (2, "forward", (10, 11)))
    assert find_stale(run, truth) is None
