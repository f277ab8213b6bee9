"""Stale: which version of a parameter is used, told from checksums."""

from __future__ import annotations

from streamrace.detectors import Stale, Values, find_stale


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


# -- weights that are quantized for the all-gather: one version, several values ----------------------------------

Row = tuple[int, int, str, tuple[int, ...]]


def quantized(*uses: Row) -> Values:
    """One rank's uses of ``w``: step, micro-batch, phase, checksums."""
    run = Values()
    run.add(0, [], [(step, micro_batch, phase, "w", sums, 0, 0.0) for step, micro_batch, phase, sums in uses])
    return run


def of_step(step: int, first: int, other: int) -> tuple[Row, ...]:
    """Gathered from the primary partition at first, alone or in a bucket; from the secondary one from then on."""
    return (
        (step, 1, "forward", (first, first)),
        (step, 1, "backward", (other, other)),
        (step, 2, "forward", (other, other)),
        (step, 2, "backward", (first, other)),
    )


def test_micro_batches_that_round_otherwise_hold_one_version() -> None:
    """The last use holds what the first one held, and not what its own forward pass did."""
    run = quantized(*of_step(1, 10, 11), *of_step(2, 20, 21))
    assert find_stale(run, run) is None
    without_backward = quantized(*[use for use in of_step(1, 10, 11) + of_step(2, 20, 21) if use[2] == "forward"])
    assert find_stale(run, without_backward) is None


def test_an_update_that_a_block_does_not_show_is_not_stale() -> None:
    """The secondary partition's blocks hold in step 2 what they held in step 1; the primary one's do not."""
    run = quantized(*of_step(1, 10, 11), *of_step(2, 20, 11))
    assert find_stale(run, run) is None


def test_a_quantized_secondary_that_is_not_rewritten_is_stale() -> None:
    truth = quantized(*of_step(1, 10, 11), *of_step(2, 20, 21))
    run = quantized(
        *of_step(1, 10, 11),
        (2, 1, "forward", (20, 20)),
        (2, 1, "backward", (11, 11)),
        (2, 2, "forward", (11, 11)),
        (2, 2, "backward", (10, 11)),
    )
    found = find_stale(run, truth)
    assert found is not None
    assert (found.step, found.micro_batch, found.phase, found.version, found.edited) == (2, 1, "backward", 1, False)
    assert found.uses == 2  # the second forward pass is followed, not compared: the run has left its reference


def test_a_quantized_forward_pass_is_compared_as_long_as_all_is_right() -> None:
    """Backward passes that hold other values than their forward passes do not end the comparison."""
    truth = quantized(*of_step(1, 10, 11), *of_step(2, 20, 21))
    run = quantized(*of_step(1, 10, 11), (2, 1, "forward", (10, 20)))
    found = find_stale(run, truth)
    assert found is not None
    assert (found.step, found.phase, found.version) == (2, "forward", 1)


def test_a_reference_that_is_stale_too_excuses_nothing() -> None:
    """Not where nothing is quantized: backward passes must hold what their forward passes held."""
    run = values(
        (1, "forward", (10, 11)), (1, "backward", (10, 11)), (2, "forward", (20, 21)), (2, "backward", (10, 11))
    )
    found = find_stale(run, run)
    assert found is not None
    assert found.version == 1
