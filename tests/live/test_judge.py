"""Stories of what one step showed, and what is made of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from streamrace.detectors.live.chains import Mismatch, Sum, SumEvent
from streamrace.detectors.live.finding import Cause, Finding, Kind, ProbePoint, ProbeResult
from streamrace.detectors.live.judge import Judge, Step, merge

WEIGHT = "up.weight"
MASK = ProbePoint(Kind.OUTPUT, "masked")
UP = ProbePoint(Kind.OUTPUT, "up")
LOSS = ProbePoint(Kind.LOSS)
GRADIENT = ProbePoint(Kind.GRADIENT, "up", WEIGHT)


def probe(point: ProbePoint, order: int, phase: str = "forward", **more: Any) -> ProbeResult:
    """One that is bad: eight values with a NaN, or as ``more`` says."""
    counts = {"nan": 0 if more else 1, "plus_inf": 0, "minus_inf": 0, "low": -1.0, "high": 1.0, "numel": 8}
    return ProbeResult(point, **{"step": 1, "micro_batch": 1, "phase": phase, "order": order, **counts, **more})


def mask(order: int, point: ProbePoint = MASK) -> ProbeResult:
    return probe(point, order, minus_inf=3)


def judge(*bad: ProbeResult, judge: Judge | None = None, **step: Any) -> Finding | None:
    return (judge or Judge(0, frozenset(Kind))).step(Step(1, bad=list(bad), **step))


def found(*bad: ProbeResult, judge: Judge | None = None, **step: Any) -> Finding:
    finding = (judge or Judge(0, frozenset(Kind))).step(Step(1, bad=list(bad), **step))
    assert finding is not None
    return finding


def mismatch(order: int, event: SumEvent = SumEvent.READ, partition: Kind = Kind.PRIMARY) -> Mismatch:
    at = Sum(event, WEIGHT, partition, 1, "forward", order, (1,))
    return Mismatch(Cause.RACE if event is SumEvent.READ else Cause.CORRUPTION, at, 0)


# -- what is no fault --------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [MASK, ProbePoint(Kind.TAKEN, "softmax")], ids=str)
def test_a_mask_of_minus_infinity_is_not_blamed_in_the_first_step_nor_later(point: ProbePoint) -> None:
    one = Judge(0, frozenset(Kind))
    assert judge(mask(3, point), judge=one) is None
    assert found(mask(3, point), probe(UP, 20), probe(LOSS, 21), judge=one).module == "up"
    first_step = found(mask(3, point), probe(UP, 20), probe(LOSS, 21))
    assert (first_step.cause, first_step.module, first_step.order) == (Cause.FORWARD, "up", 20)


def test_a_mask_that_masks_everything_is_blamed_when_nan_follows_at_once() -> None:
    assert found(mask(3), probe(ProbePoint(Kind.OUTPUT, "softmax"), 4), probe(LOSS, 30)).module == "masked"


@pytest.mark.xfail(reason="what the batch brings is blamed in the first step, though it is meant", strict=True)
def test_a_mask_of_minus_infinity_in_the_batch_is_not_blamed_in_the_first_step() -> None:
    batch = mask(1, ProbePoint(Kind.INPUT, detail="attention_mask"))
    assert found(batch, probe(UP, 20), probe(LOSS, 21)).module == "up"


def test_points_that_are_bad_in_healthy_steps_are_not_blamed() -> None:
    one = Judge(0, frozenset(Kind))
    padding = ProbePoint(Kind.OUTPUT, "features")
    assert judge(probe(padding, 2), judge=one) is None
    finding = found(probe(padding, 2), probe(UP, 9), probe(padding, 11), probe(LOSS, 12), judge=one)
    assert finding.module == "up"
    assert [line.partition(": ")[2] for line in finding.spread] == ["loss of the model: 1 of 8 bad"]


def test_a_gradient_is_never_usual() -> None:
    """Each overflow probes the same, and none of them excuses the one that is applied."""
    one = Judge(0, frozenset(Kind))
    overflow = probe(GRADIENT, 9, "backward", plus_inf=1)
    assert judge(overflow, judge=one, skipped=True, scaled=True) is None
    assert found(overflow, judge=one).cause is Cause.GRADIENT


def test_nan_that_reaches_nothing_kept_is_no_finding() -> None:
    assert (
        judge(probe(UP, 3), probe(ProbePoint(Kind.TAKEN, "down"), 4), probe(ProbePoint(Kind.INPUT, detail="x"), 1))
        is None
    )
    assert judge(probe(ProbePoint(Kind.OUTPUT_GRADIENT, "up"), 5, "backward")) is None


def test_nan_in_what_the_model_returns_is_a_finding_and_infinity_is_none() -> None:
    root = ProbePoint(Kind.OUTPUT, detail="logits")
    finding = found(probe(root, 7))
    assert (finding.cause, finding.module, finding.detail) == (Cause.FORWARD, "", "logits")
    assert judge(probe(root, 7, minus_inf=2)) is None
    assert found(probe(UP, 3), probe(root, 7)).module == "up"


# -- what is -----------------------------------------------------------------------------------------------


def test_the_order_of_execution_decides_and_not_the_order_in_the_list() -> None:
    late, early = probe(ProbePoint(Kind.OUTPUT, "down"), 8), probe(UP, 5)
    assert found(probe(LOSS, 9), late, early).module == "up"
    assert found(early, late, probe(LOSS, 9)).module == "up"


def test_what_a_step_begins_with_comes_before_its_forward_pass() -> None:
    """An edit between steps: the phase is still that of the step before."""
    edited = probe(ProbePoint(Kind.SECONDARY, "up", WEIGHT), 1, "step")
    used = probe(ProbePoint(Kind.PARAMETER, "up", WEIGHT), 4)
    assert found(edited, used, probe(LOSS, 9), sharded=True).order == 1


def test_an_overflow_that_the_loss_scale_looks_for_is_no_finding() -> None:
    overflow = probe(GRADIENT, 9, "backward", plus_inf=1), probe(GRADIENT, 10, "step", plus_inf=1)
    assert judge(*overflow, skipped=True, scaled=True) is None


@pytest.mark.parametrize("step", [{"skipped": True}, {"scaled": True}, {}], ids=["no scale", "not skipped", "neither"])
def test_a_bad_gradient_is_a_finding_where_it_is_applied_or_nothing_is_scaled(step: dict[str, bool]) -> None:
    finding = found(probe(GRADIENT, 9, "backward", plus_inf=1), **step)
    assert (finding.cause, finding.parameter, finding.inf) == (Cause.GRADIENT, WEIGHT, 1)


def test_a_bad_loss_is_a_finding_in_a_skipped_step_too() -> None:
    assert found(probe(LOSS, 9), probe(GRADIENT, 12, "backward"), skipped=True, scaled=True).kind is Kind.LOSS


def test_the_gradient_of_an_output_is_where_a_bad_gradient_begins() -> None:
    began = probe(ProbePoint(Kind.OUTPUT_GRADIENT, "up"), 8, "backward")
    assert found(probe(GRADIENT, 9, "backward"), began).kind is Kind.OUTPUT_GRADIENT


def test_a_loss_over_no_label_is_bad_data() -> None:
    finding = found(probe(LOSS, 9), labels_high={1: -100.0})
    assert (finding.cause, finding.kind) == (Cause.DATA, Kind.LOSS)
    assert "ignored" in finding.evidence[0]
    assert found(probe(LOSS, 9), labels_high={1: 5.0, 2: -100.0}).cause is Cause.LOSS


def test_a_bound_makes_any_point_a_finding_and_a_skipped_gradient_none() -> None:
    assert found(probe(UP, 3, beyond=True)).beyond
    assert judge(probe(GRADIENT, 3, "backward", beyond=True), skipped=True, scaled=True) is None


@pytest.mark.parametrize(
    ("point", "phase", "sharded", "cause"),
    [
        (ProbePoint(Kind.INPUT, detail="x"), "forward", False, Cause.DATA),
        (ProbePoint(Kind.OPTIMIZER, "up", WEIGHT, "exp_avg"), "step", False, Cause.OPTIMIZER),
        (ProbePoint(Kind.PARAMETER, "up", WEIGHT), "step", False, Cause.STEP),
        (ProbePoint(Kind.PRIMARY, "up", WEIGHT), "step", True, Cause.STEP),
        (ProbePoint(Kind.PARAMETER, "up", WEIGHT), "forward", True, Cause.SHARDING),
        (ProbePoint(Kind.SECONDARY, "up", WEIGHT), "forward", True, Cause.SHARDING),
    ],
    ids=str,
)
def test_the_kind_and_the_phase_say_the_cause(point: ProbePoint, phase: str, sharded: bool, cause: Cause) -> None:
    assert found(probe(point, 1, phase), probe(LOSS, 30, "step"), sharded=sharded).cause is cause


def test_a_bad_parameter_with_bad_state_comes_of_the_state() -> None:
    state = probe(ProbePoint(Kind.OPTIMIZER, "up", WEIGHT, "exp_avg"), 11, "step")
    assert found(probe(ProbePoint(Kind.PARAMETER, "up", WEIGHT), 10, "step"), state).cause is Cause.OPTIMIZER


def test_what_is_not_watched_is_not_called_good() -> None:
    bad = probe(ProbePoint(Kind.PARAMETER, "up", WEIGHT), 10, "step")
    assert found(bad).evidence == ("No gradient of the step was bad.",)
    assert found(bad, judge=Judge(0, frozenset({Kind.PARAMETER}))).evidence == ()


def test_the_largest_good_value_is_told_where_an_output_overflows() -> None:
    assert "6.5e+04, output of up" in found(probe(UP, 3), probe(LOSS, 9), largest=(65000.0, UP)).evidence[-1]


# -- mismatches --------------------------------------------------------------------------------------------


def test_a_mismatch_before_the_first_bad_value_explains_it() -> None:
    finding = found(probe(ProbePoint(Kind.PARAMETER, "up", WEIGHT), 6), probe(LOSS, 9), mismatches=[mismatch(5)])
    assert (finding.cause, finding.order, finding.nan, finding.parameter) == (Cause.RACE, 5, 1, WEIGHT)


def test_a_mismatch_behind_it_does_not() -> None:
    assert found(probe(UP, 3), probe(LOSS, 9), mismatches=[mismatch(5)]).cause is Cause.FORWARD


def test_the_earliest_mismatch_is_told_though_all_values_are_finite() -> None:
    finding = found(mismatches=[mismatch(8), mismatch(5)])
    assert (finding.order, finding.nan, finding.inf) == (5, 0, 0)
    assert math.isnan(finding.low)


def test_a_whole_parameter_that_changed_explains_what_came_before_its_checksum() -> None:
    """Between two steps it is looked at once, at the end: what was computed with it comes earlier in the order."""
    whole = mismatch(50, SumEvent.SETTLED, Kind.PARAMETER)
    assert found(probe(UP, 3), probe(LOSS, 9), mismatches=[whole]).cause is Cause.CORRUPTION


def test_the_numbers_told_are_those_of_what_is_named_and_never_a_gradients() -> None:
    whole = mismatch(50, SumEvent.SETTLED, Kind.PARAMETER)
    applied = probe(ProbePoint(Kind.GRADIENT, "up", WEIGHT, "applied"), 51, "step", nan=7, low=0.0, high=0.0)
    before = probe(ProbePoint(Kind.PARAMETER, "up", WEIGHT), 52, "step", nan=1, low=-2.0, high=2.0)
    after = probe(ProbePoint(Kind.PARAMETER, "up", WEIGHT), 53, "step", nan=7)
    finding = found(probe(LOSS, 9), applied, before, after, mismatches=[whole])
    assert (finding.kind, finding.nan, finding.low, finding.high) == (Kind.PARAMETER, 1, -2.0, 2.0)
    finding = found(probe(LOSS, 9), applied, mismatches=[whole])
    assert "its values were not watched" in finding.sentence()


def test_the_numbers_of_a_gathered_parameter_are_said_to_be_its() -> None:
    finding = found(probe(ProbePoint(Kind.PARAMETER, "up", WEIGHT), 6), probe(LOSS, 9), mismatches=[mismatch(5)])
    assert finding.evidence[-1] == "The numbers are those of the parameter that was gathered from it."


def test_how_a_changed_parameter_spread_begins_with_the_first_bad_value_and_not_with_its_checksum() -> None:
    whole = mismatch(50, SumEvent.SETTLED, Kind.PARAMETER)
    applied = probe(ProbePoint(Kind.GRADIENT, "up", WEIGHT, "applied"), 51, "step")
    finding = found(probe(UP, 3), probe(LOSS, 9), applied, mismatches=[whole])
    assert [line.split(": ")[1] for line in finding.spread] == [
        "output of up",
        "loss of the model",
        "gradient applied of up.weight",
    ]


def test_what_spread_too_far_to_be_listed_is_counted() -> None:
    finding = found(
        probe(UP, 3), *(probe(ProbePoint(Kind.OUTPUT, f"{at}"), at) for at in range(4, 24)), probe(LOSS, 30)
    )
    assert len(finding.spread) == 13
    assert finding.spread[-1] == "and 9 more"


def test_the_parameters_of_a_first_step_are_not_said_to_have_been_good_before_it() -> None:
    first = found(probe(UP, 3), probe(LOSS, 9))
    assert not any("step before" in line for line in first.evidence)
    later = Judge(0, frozenset(Kind)).step(Step(2, bad=[probe(UP, 3), probe(LOSS, 9)]))
    assert later is not None
    assert "The parameters of up were good after the step before." in later.evidence


def test_a_bad_step_is_not_said_to_come_of_gradients_that_nobody_watched() -> None:
    bad = probe(ProbePoint(Kind.PARAMETER, "up", WEIGHT), 10, "step")
    assert "good" not in found(bad, judge=Judge(0, frozenset({Kind.PARAMETER}))).sentence().partition("(")[0]


# -- ranks -------------------------------------------------------------------------------------------------


def of_rank(rank: int, *bad: ProbeResult) -> Finding:
    return found(*bad, judge=Judge(rank, frozenset(Kind)))


def test_of_all_ranks_findings_the_earliest_counts_and_all_ranks_are_listed() -> None:
    late, early = of_rank(0, probe(LOSS, 9)), of_rank(2, probe(UP, 5), probe(LOSS, 9))
    merged = merge([late, early, of_rank(1, probe(LOSS, 9))])
    assert merged is not None
    assert (merged.rank, merged.ranks, merged.module) == (2, (0, 1, 2), "up")
    assert merged.evidence[-1] == "Seen later, or at the same place, on rank 0, 1."


def test_of_many_ranks_the_first_are_named_and_the_others_counted() -> None:
    few, many = (merge(of_rank(rank, probe(LOSS, 9)) for rank in range(count)) for count in (2, 64))
    assert few is not None and few.evidence[-1] == "Seen later, or at the same place, on rank 1."
    assert many is not None and many.ranks == tuple(range(64))
    assert many.evidence[-1] == "Seen later, or at the same place, on rank 1, 2, 3, 4, 5, 6, 7, 8 and 55 more."


def test_at_the_same_place_the_lowest_rank_speaks() -> None:
    merged = merge([of_rank(3, probe(LOSS, 9)), of_rank(1, probe(LOSS, 9))])
    assert merged is not None
    assert (merged.rank, merged.ranks) == (1, (1, 3))


def test_an_earlier_phase_comes_first_whatever_the_order_on_its_rank() -> None:
    """Ranks count by themselves: what one of them did more must not make it later."""
    merged = merge([of_rank(0, probe(GRADIENT, 10, "backward")), of_rank(1, probe(LOSS, 12))])
    assert merged is not None
    assert merged.rank == 1


def test_no_findings_are_none_and_one_stays_as_it_is() -> None:
    alone = of_rank(1, probe(LOSS, 9))
    assert merge([]) is None
    assert merge([alone]) == alone
