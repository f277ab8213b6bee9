"""Stories of one parameter's bits on one rank, and random lives of several with one fault in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors.live.chains import Chains, Mismatch, Shape, Sum, SumEvent
from streamrace.detectors.live.finding import Cause, Kind
from streamrace.detectors.live.ops import add
from tests.examples import examples

# A parameter's parts, by the sums of their bits.
OLD, NEW, NEWER = (10, 20, 30, 40), (11, 21, 31, 41), (12, 22, 32, 42)
WRONG = 99
PLAIN = Shape(part=1)  # ZeRO-3: this rank has the second of the parts
HPZ = Shape(part=1, secondary=(2, 4), inner=1)  # its secondary partition is the third and fourth part


class Story:
    """What rank 1 of four measures of parameter ``w``. Each call is measured after the one before."""

    def __init__(self, shape: Shape = PLAIN) -> None:
        self.chains = Chains()
        self.chains.shape("w", shape)
        self.shape = shape
        self.sums: list[Sum] = []
        self.number = 1

    def tells(
        self, event: SumEvent, *sums: int, of: Kind = Kind.PRIMARY, phase: str = "forward", micro_batch: int = 1
    ) -> int:
        order = len(self.sums) + 1
        self.sums.append(Sum(event, "w", of, micro_batch, phase, order, sums))
        return order

    def updates(self, parts: tuple[int, ...]) -> int:
        return self.tells(SumEvent.UPDATE, parts[1], phase="step")

    def begins(self, parts: tuple[int, ...]) -> None:
        """The values that training begins with."""
        self.tells(SumEvent.EDIT, parts[1], phase="step")

    def edits(self, parts: tuple[int, ...], then: tuple[int, ...], phase: str = "step") -> None:
        """The program changes the parameter while it is gathered: it is copied, and each rank's part written back."""
        self.tells(SumEvent.EDIT, parts[1], phase=phase)
        source = add(*then[slice(*self.shape.secondary)])
        self.tells(SumEvent.SOURCE, source, of=Kind.SECONDARY, phase=phase)
        self.tells(SumEvent.EDIT, then[1], phase=phase)
        self.tells(SumEvent.COPIED, source, of=Kind.SECONDARY, phase=phase)

    def reads(self, value: int, of: Kind = Kind.PRIMARY, phase: str = "forward") -> int:
        return self.tells(SumEvent.READ, value, of=of, phase=phase)

    def uses(self, parts: tuple[int, ...], phase: str = "forward") -> int:
        return self.tells(SumEvent.USE, *parts, of=Kind.PARAMETER, phase=phase)

    def gathers(self, parts: tuple[int, ...]) -> None:
        self.reads(parts[1])
        self.uses(parts)

    def copies(self, parts: tuple[int, ...], *, leaves: int | None = None) -> int:
        source = add(*parts[slice(*self.shape.secondary)])
        self.tells(SumEvent.SOURCE, source, of=Kind.SECONDARY)
        return self.tells(SumEvent.COPIED, source if leaves is None else leaves, of=Kind.SECONDARY)

    def settles(self, value: int, of: Kind = Kind.PRIMARY) -> int:
        return self.tells(SumEvent.SETTLED, value, of=of, phase="step")

    def ends(self, *, skipped: bool = False) -> list[Mismatch]:
        found = self.chains.step(self.number, self.sums, skipped=skipped)
        self.number, self.sums = self.number + 1, []
        return found

    def lives(self, parts: tuple[int, ...], then: tuple[int, ...]) -> None:
        """A healthy step with all that hpZ, or ZeRO-3 alone, does in it. Says nothing."""
        self.gathers(parts)
        if self.shape.inner >= 0:
            secondary = add(*parts[slice(*self.shape.secondary)])
            self.copies(parts)
            self.reads(secondary, Kind.SECONDARY, "backward")
            self.uses(parts, "backward")
            self.settles(parts[1])
            self.settles(secondary, Kind.SECONDARY)
        else:
            self.gathers(parts)
            self.settles(parts[1])
        self.updates(then)
        assert self.ends() == []


def begun(shape: Shape = PLAIN) -> Story:
    """Two healthy steps lie behind: the parameter holds NEW, and OLD was what it held before."""
    story = Story(shape)
    story.begins(NEWER)
    story.lives(NEWER, OLD)
    story.lives(OLD, NEW)
    return story


def the_only(found: list[Mismatch]) -> tuple[Cause, Kind, int, int]:
    (one,) = found
    return one.cause, one.at.partition, one.at.order, one.part


# -- reads -------------------------------------------------------------------------------------------------


def test_a_healthy_step_says_nothing() -> None:
    begun(PLAIN).lives(NEW, NEWER)
    begun(HPZ).lives(NEW, NEWER)


def test_a_read_before_the_write_has_landed_is_a_race_once_it_has_settled() -> None:
    story = begun()
    order = story.reads(OLD[1])
    story.uses((NEW[0], OLD[1], *NEW[2:]))  # what follows from it is no second fault
    story.settles(NEW[1])
    found = story.ends()
    assert the_only(found) == (Cause.RACE, Kind.PRIMARY, order, 1)
    assert found[0].version == 2  # what step 2 computed with
    assert "landed after the read" in found[0].evidence[1]


def test_a_secondary_read_while_it_is_written_is_a_race() -> None:
    story = begun(HPZ)
    story.gathers(NEW)
    story.copies(NEW)
    order = story.reads(add(*OLD[2:]), Kind.SECONDARY, "backward")
    story.uses((*NEW[:2], *OLD[2:]), "backward")
    story.settles(NEW[1])
    story.settles(add(*NEW[2:]), Kind.SECONDARY)
    found = story.ends()
    assert the_only(found) == (Cause.RACE, Kind.SECONDARY, order, 1)
    assert found[0].version == 2  # what step 2 computed with


def test_a_race_stays_one_when_its_partition_is_dropped_before_it_settles() -> None:
    story = begun(HPZ)
    story.gathers(NEW)
    story.copies(NEW)
    order = story.reads(WRONG, Kind.SECONDARY, "backward")
    story.uses((*NEW[:2], WRONG, 0), "backward")
    story.settles(NEW[1])
    found = story.ends()
    assert the_only(found) == (Cause.RACE, Kind.SECONDARY, order, 1)
    assert "released" in found[0].evidence[1]


@pytest.mark.parametrize("of", [Kind.PRIMARY, Kind.SECONDARY], ids=str)
def test_a_read_of_what_stays_wrong_is_corruption(of: Kind) -> None:
    story = begun(HPZ if of is Kind.SECONDARY else PLAIN)
    story.gathers(NEW)
    if of is Kind.SECONDARY:
        story.copies(NEW)
    order = story.reads(WRONG, of, "backward")
    story.uses((NEW[0], WRONG, *NEW[2:]), "backward")
    story.settles(WRONG, of)
    assert the_only(story.ends()) == (Cause.CORRUPTION, of, order, 1)


@pytest.mark.parametrize("of", [Kind.PRIMARY, Kind.SECONDARY], ids=str)
def test_what_changes_after_the_last_read_is_corruption_before_the_step(of: Kind) -> None:
    story = begun(HPZ if of is Kind.SECONDARY else PLAIN)
    story.gathers(NEW)
    if of is Kind.SECONDARY:
        story.copies(NEW)
    order = story.settles(WRONG, of)
    assert the_only(story.ends()) == (Cause.CORRUPTION, of, order, 1)


def test_a_whole_parameter_that_changes_between_steps_is_corruption() -> None:
    """DDP, ZeRO-1 and 2: nothing is gathered."""
    story = Story(Shape())
    story.tells(SumEvent.EDIT, 5, of=Kind.PARAMETER, phase="step")
    story.tells(SumEvent.SETTLED, 5, of=Kind.PARAMETER, phase="step")
    story.tells(SumEvent.UPDATE, 6, of=Kind.PARAMETER, phase="step")
    assert story.ends() == []
    order = story.tells(SumEvent.SETTLED, WRONG, of=Kind.PARAMETER, phase="step")
    assert the_only(story.ends()) == (Cause.CORRUPTION, Kind.PARAMETER, order, -1)


# -- copies ------------------------------------------------------------------------------------------------


def keeps_its_secondary(story: Story, parts: tuple[int, ...]) -> list[Mismatch]:
    """The next step reads what the step before copied; all ranks' parts come from secondary partitions."""
    order = story.reads(add(*parts[2:]), Kind.SECONDARY)
    story.uses(parts)
    found = story.ends()
    assert found
    assert found[0].at.order == order
    return found


def test_a_secondary_kept_over_a_step_is_stale_and_its_version_is_told() -> None:
    found = keeps_its_secondary(begun(HPZ), OLD)
    assert (found[0].cause, found[0].at.partition, found[0].part) == (Cause.STALE, Kind.SECONDARY, 1)
    assert found[0].version == 2  # what step 2 computed with
    assert "changed in step 2" in found[0].evidence[0]


def test_it_is_stale_after_the_first_step_too() -> None:
    story = Story(HPZ)
    story.begins(OLD)
    story.lives(OLD, NEW)
    found = keeps_its_secondary(story, OLD)
    assert (found[0].cause, found[0].version) == (Cause.STALE, 1)
    assert "changed in step 1" in found[0].evidence[0]


def test_it_is_stale_after_an_edit_between_steps_as_well() -> None:
    story = begun(HPZ)
    story.edits(NEW, NEWER)
    story.reads(add(*NEWER[2:]), Kind.SECONDARY)
    story.uses(NEWER)
    story.settles(NEWER[1])
    story.settles(add(*NEWER[2:]), Kind.SECONDARY)
    story.updates(OLD)
    assert story.ends() == []
    assert keeps_its_secondary(story, NEWER)[0].cause is Cause.STALE


def test_a_copy_that_leaves_something_else_is_uncovered() -> None:
    story = begun(HPZ)
    story.gathers(NEW)
    order = story.copies(NEW, leaves=WRONG)
    story.settles(NEW[1])
    story.settles(WRONG, Kind.SECONDARY)
    assert the_only(story.ends()) == (Cause.UNCOVERED, Kind.SECONDARY, order, 1)


def test_a_gathered_parameter_that_changes_before_it_is_copied_is_corruption() -> None:
    story = begun(HPZ)
    story.gathers(NEW)
    order = story.copies((*NEW[:3], WRONG)) - 1
    assert the_only(story.ends()) == (Cause.CORRUPTION, Kind.PARAMETER, order, 1)


# -- all-gather --------------------------------------------------------------------------------------------


def test_another_thing_than_was_read_arrives() -> None:
    story = begun()
    story.reads(NEW[1])
    order = story.uses((NEW[0], WRONG, *NEW[2:]))
    assert the_only(story.ends()) == (Cause.GATHER, Kind.PARAMETER, order, 1)


def test_another_ranks_part_arrives_otherwise_than_at_the_first_use() -> None:
    story = begun()
    story.gathers(NEW)
    story.reads(NEW[1], phase="backward")
    order = story.uses((*NEW[:3], WRONG), "backward")
    assert the_only(story.ends()) == (Cause.GATHER, Kind.PARAMETER, order, 3)


def test_a_quantized_parameter_is_not_compared_after_the_all_gather() -> None:
    story = begun(HPZ._replace(lossy=True))
    story.reads(NEW[1])
    story.uses((1, 2, 3, 4))
    story.copies((1, 2, 3, 4))
    story.reads(7, Kind.SECONDARY, "backward")
    story.uses((5, 6, 7, 8), "backward")
    story.settles(NEW[1])
    story.settles(7, Kind.SECONDARY)
    assert story.ends() == []
    order = story.settles(WRONG)
    assert the_only(story.ends()) == (Cause.CORRUPTION, Kind.PRIMARY, order, 1)


def test_a_rank_without_a_part_of_its_own_follows_the_others() -> None:
    story = Story(Shape(part=3))
    parts = OLD[:3]
    story.tells(SumEvent.EDIT, 0, phase="step")
    story.reads(0)
    story.uses(parts)
    assert story.ends() == []
    story.reads(0)
    order = story.uses((WRONG, *parts[1:]))
    assert the_only(story.ends()) == (Cause.GATHER, Kind.PARAMETER, order, 0)
    story.tells(SumEvent.UPDATE, 0, phase="step")
    assert story.ends() == []
    story.uses(NEW[:3])
    assert story.ends() == [], "that the others' parts are new is known, though this rank's is empty as before"


# -- versions ----------------------------------------------------------------------------------------------


def test_an_edit_makes_a_new_version() -> None:
    story = begun(HPZ)
    story.gathers(NEW)
    story.copies(NEW)
    story.edits(NEW, NEWER, "backward")
    story.reads(add(*NEWER[2:]), Kind.SECONDARY)
    story.uses(NEWER)
    story.settles(NEWER[1])
    story.settles(add(*NEWER[2:]), Kind.SECONDARY)
    assert story.ends() == []


def test_an_edit_of_another_ranks_part_makes_one_too_though_the_step_is_skipped() -> None:
    story = begun(HPZ)
    story.gathers(NEW)
    story.copies(NEW)
    edited = (NEW[0], NEW[1], NEW[2], NEWER[3])
    story.edits(NEW, edited, "backward")
    story.reads(add(*edited[2:]), Kind.SECONDARY)
    story.uses(edited)
    assert story.ends(skipped=True) == []


def test_a_skipped_step_makes_none() -> None:
    story = begun(HPZ)
    story.gathers(NEW)
    story.copies(NEW)
    story.settles(NEW[1])
    story.settles(add(*NEW[2:]), Kind.SECONDARY)
    story.updates(NEW)
    assert story.ends(skipped=True) == []
    story.reads(add(*NEW[2:]), Kind.SECONDARY)  # rightly kept
    story.uses(NEW)
    assert story.ends() == []
    story.gathers(NEW)
    order = story.uses((*NEW[:3], WRONG))
    assert the_only(story.ends()) == (Cause.GATHER, Kind.PARAMETER, order, 3), "the first use was steps ago"


def test_a_frozen_parameter_keeps_its_version_and_its_secondary() -> None:
    story = Story(HPZ)
    story.begins(OLD)
    story.gathers(OLD)
    story.copies(OLD)
    assert story.ends() == []
    for _ in range(6):
        story.reads(add(*OLD[2:]), Kind.SECONDARY)
        story.uses(OLD)
        story.settles(OLD[1])
        story.settles(add(*OLD[2:]), Kind.SECONDARY)
        assert story.ends() == []
    order = story.settles(WRONG)
    assert the_only(story.ends()) == (Cause.CORRUPTION, Kind.PRIMARY, order, 1)


def test_parameters_are_told_apart_and_order_decides_not_the_list() -> None:
    chains = Chains()
    for name in ("a", "b"):
        chains.shape(name, PLAIN)
    events = [
        Sum(SumEvent.EDIT, "a", Kind.PRIMARY, 1, "step", 1, (5,)),
        Sum(SumEvent.EDIT, "b", Kind.PRIMARY, 1, "step", 2, (6,)),
        Sum(SumEvent.READ, "b", Kind.PRIMARY, 1, "forward", 3, (7,)),
        Sum(SumEvent.READ, "a", Kind.PRIMARY, 1, "forward", 4, (8,)),
        Sum(SumEvent.SETTLED, "a", Kind.PRIMARY, 1, "step", 5, (8,)),
        Sum(SumEvent.SETTLED, "b", Kind.PRIMARY, 1, "step", 6, (6,)),
    ]
    found = chains.step(1, reversed(events))
    assert [(one.cause, one.at.parameter) for one in found] == [(Cause.RACE, "b"), (Cause.CORRUPTION, "a")]


# -- random lives ------------------------------------------------------------------------------------------

FAULTS = ("race", "corruption", "stale", "uncovered", "all-gather", "while gathered")


@dataclass
class Parameter:
    """What is true of one parameter, on one rank: numbers stand for the bits of its parts."""

    name: str
    shape: Shape
    frozen: bool
    truth: list[int]
    primary: int = 0
    secondary: int | None = None
    used: bool = False  # in this version
    since: int = 0  # step of this version

    @property
    def own(self) -> int:
        return self.truth[self.shape.part] if self.shape.part < len(self.truth) else 0

    def merged(self, parts: list[int]) -> int:
        return add(*parts[slice(*self.shape.secondary)])


@dataclass
class Life:
    """Steps as DeepSpeed makes them. ``plant``: a fault, and at which of its opportunities it strikes."""

    parameters: list[Parameter]
    random: Random
    plant: tuple[str, int] | None = None
    chances: Counter[str] = field(default_factory=Counter)
    sums: list[Sum] = field(default_factory=list)
    expected: tuple[Cause, str, int] | None = None
    watched: tuple[Cause, str, Kind] | None = None  # the fault is there, and shows at the next look at this
    edited: frozenset[str] = frozenset()  # what will be written anew within the step, so that it never settles

    def strikes(self, fault: str) -> bool:
        self.chances[fault] += 1
        return self.plant == (fault, self.chances[fault] - 1)

    def fresh(self) -> int:
        return self.random.getrandbits(64)

    def tell(self, event: SumEvent, one: Parameter, of: Kind, *sums: int, phase: str = "forward") -> None:
        order = len(self.sums) + 1
        self.sums.append(Sum(event, one.name, of, 1, phase, order, sums))
        if self.watched is None or self.watched[1:] != (one.name, of):
            return
        cause = self.watched[0]
        if event is SumEvent.READ or (event is SumEvent.SETTLED and cause is Cause.CORRUPTION):
            self.expected, self.watched = (cause, one.name, order), None

    def here(self, cause: Cause, one: Parameter) -> None:
        self.expected = (cause, one.name, len(self.sums) + 1)

    def begin(self) -> None:
        for one in self.parameters:
            one.primary = one.own
            self.tell(SumEvent.EDIT, one, Kind.PRIMARY, one.primary, phase="step")

    def visit(self, one: Parameter, uses: int) -> None:
        """All-gather, use, release: in a forward or a backward pass."""
        self.decay(one)
        parts = self.gather(one)
        if one.shape.lossy:
            parts = [self.fresh() for _ in parts]
        for _ in range(uses):
            has_own = one.shape.part < len(parts)
            if not one.shape.lossy and (has_own or one.used) and self.strikes("all-gather"):
                parts = list(parts)
                parts[self.random.randrange(len(parts)) if one.used else one.shape.part] = self.fresh()
                self.here(Cause.GATHER, one)
            self.tell(SumEvent.USE, one, Kind.PARAMETER, *parts)
            one.used = True
        if one.shape.inner >= 0 and one.secondary is None:
            if one.used and not one.shape.lossy and self.strikes("while gathered"):
                parts = [self.fresh() for _ in parts]
                self.here(Cause.CORRUPTION, one)
            self.copy(one, parts)

    def gather(self, one: Parameter) -> list[int]:
        parts = list(one.truth)
        partition = Kind.PRIMARY if one.secondary is None else Kind.SECONDARY
        held = one.primary if one.secondary is None else one.secondary
        if one.name not in self.edited and self.strikes("race"):
            held = self.fresh()
            self.here(Cause.RACE, one)
        self.tell(SumEvent.READ, one, partition, held)
        if held != (one.own if one.secondary is None else one.merged(one.truth)):
            parts = [self.fresh() for _ in parts]
        return parts

    def copy(self, one: Parameter, parts: list[int], *, edit: str = "") -> None:
        if self.watched is not None and self.watched[1:] == (one.name, Kind.SECONDARY):
            self.watched = None  # nobody read what was wrong, and now it is gone
        source = one.merged(parts)
        self.tell(SumEvent.SOURCE, one, Kind.SECONDARY, source)
        if edit:
            self.tell(SumEvent.EDIT, one, Kind.PRIMARY, one.primary, phase=edit)
        one.secondary = source
        if self.strikes("uncovered"):
            one.secondary = self.fresh()
            self.here(Cause.UNCOVERED, one)
        self.tell(SumEvent.COPIED, one, Kind.SECONDARY, one.secondary)

    def decay(self, one: Parameter) -> None:
        """Memory changes, here and there."""
        for partition in (Kind.PRIMARY, Kind.SECONDARY):
            present = partition is Kind.PRIMARY or one.secondary is not None
            if present and one.name not in self.edited and self.strikes("corruption"):
                if partition is Kind.PRIMARY:
                    one.primary = self.fresh()
                else:
                    one.secondary = self.fresh()
                self.watched = (Cause.CORRUPTION, one.name, partition)

    def edit(self, one: Parameter, phase: str) -> None:
        """The program changes the parameter while it is gathered, and each rank's part is written back."""
        self.gather(one)
        self.tell(SumEvent.EDIT, one, Kind.PRIMARY, one.primary, phase=phase)
        if one.secondary is not None:
            self.tell(SumEvent.SETTLED, one, Kind.SECONDARY, one.secondary, phase=phase)
        self.renew(one)
        if one.shape.inner >= 0:
            self.copy(one, one.truth, edit=phase)
        else:
            self.tell(SumEvent.EDIT, one, Kind.PRIMARY, one.primary, phase=phase)

    def renew(self, one: Parameter) -> None:
        one.truth = [self.fresh() for _ in one.truth]
        one.primary, one.used = one.own, False

    def step(self, *, skipped: bool) -> None:
        for one in self.parameters:
            self.decay(one)
        for one in self.parameters:
            self.tell(SumEvent.SETTLED, one, Kind.PRIMARY, one.primary, phase="step")
        for one in self.parameters:
            if one.secondary is not None:
                self.tell(SumEvent.SETTLED, one, Kind.SECONDARY, one.secondary, phase="step")
        for one in self.parameters:
            if not one.frozen:
                if not skipped:
                    self.renew(one)
                    if one.secondary is not None and one.shape.part < len(one.truth) and self.strikes("stale"):
                        self.watched = (Cause.STALE, one.name, Kind.SECONDARY)
                    else:
                        one.secondary = None
                self.tell(SumEvent.UPDATE, one, Kind.PRIMARY, one.primary, phase="step")


VISIT = st.tuples(st.just("visit"), st.integers(0, 1), st.integers(0, 2))
ACT = st.one_of(VISIT, VISIT, VISIT, st.tuples(st.just("edit"), st.integers(0, 1), st.just(0)))
STEP = st.tuples(st.lists(ACT, min_size=1, max_size=6), st.sampled_from([False, False, False, True]))
STEPS = st.lists(STEP, min_size=2, max_size=5)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Shape, bool, int]:
    """A rank of four; how the parameter is sharded, whether it is frozen, and how many parts have elements."""
    rank = draw(st.integers(0, 3))
    inner = rank % 2 if draw(st.booleans()) else -1
    secondary = (2 * inner, 2 * inner + 2) if inner >= 0 else (0, 0)
    shape = Shape(rank, secondary, lossy=draw(st.integers(0, 5)) == 0, inner=inner)
    return shape, draw(st.integers(0, 4)) == 0, draw(st.sampled_from([4, 4, 4, 3]))


def live(
    cast: list[tuple[Shape, bool, int]], steps: list[Any], plant: tuple[str, int] | None = None
) -> tuple[Life, list[Mismatch]]:
    """Until the step that ends with a mismatch, or all of them."""
    random = Random(0)
    life = Life(
        [
            Parameter(f"w{place}", shape, frozen, [random.getrandbits(64) for _ in range(parts)])
            for place, (shape, frozen, parts) in enumerate(cast)
        ],
        random,
        plant,
    )
    chains = Chains()
    for one in life.parameters:
        chains.shape(one.name, one.shape)
    life.begin()
    for number, (acts, skipped) in enumerate(steps, 1):
        visited = False
        for index, (what, place, uses) in enumerate(acts):
            one = life.parameters[place]
            life.edited = frozenset(f"w{other}" for later, other, _ in acts[index:] if later == "edit")
            if what == "visit":
                life.visit(one, uses)
                visited = True
            else:
                life.edit(one, "backward" if visited else "step")
        life.step(skipped=skipped)
        found = chains.step(number, life.sums, skipped=skipped)
        life.sums = []
        if found or life.expected is not None:
            return life, found
    return life, []


CAST = st.lists(shapes(), min_size=2, max_size=2)
LIVES = examples(200)


@LIVES
@given(CAST, STEPS)
def test_no_healthy_life_has_a_mismatch(cast: list[tuple[Shape, bool, int]], steps: list[Any]) -> None:
    life, found = live(cast, steps)
    assert found == []
    assert life.expected is None


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_in_a_life_is_named_rightly(fault: str) -> None:
    struck = 0

    @LIVES
    @given(CAST, STEPS, st.integers(0, 100))
    def search(cast: list[tuple[Shape, bool, int]], steps: list[Any], when: int) -> None:
        nonlocal struck
        healthy, _ = live(cast, steps)
        chances = healthy.chances[fault]
        if not chances:
            return
        life, found = live(cast, steps, (fault, when % chances))
        if life.expected is None:  # nobody looked at it again
            assert found == []
            return
        struck += 1
        assert found, life.expected
        first = found[0]
        assert (first.cause, first.at.parameter, first.at.order) == life.expected

    search()
    assert struck > 25, "the fault was hardly ever planted"
