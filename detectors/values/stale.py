"""Detects stale parameters: every access is ordered, and yet a parameter is used in an older version.

The evidence is the version: each part of a parameter that is used is looked up among the values that
the same part had before. A race delivers values that were never a version (poison, zeros, a mixture).

**Where weights are quantized for the all-gather** (qwZ), one version has several values: blocks span all parameters
gathered together, so a backward pass holds other values than its own forward pass, and they may be those of an earlier
micro-batch. Two rules keep this from being taken for stale:

* Parameters change between steps. Values seen in a forward pass of the *same* step are no older version, in any run.
* If the reference's backward passes hold other values than its forward passes already in the first step, which has no
  older version, then it quantizes; and then a use that holds the same values as the reference is right. (An update
  may be too small for a block to show it: one value in two steps.) This misses a run and a reference that
  are stale alike. Without quantization this rule does not apply: a backward pass must hold its forward pass's values,
  whatever the reference does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streamrace.detectors.values.divergence import Use, Values, by_occurrence, number


@dataclass(frozen=True)
class Stale:
    """Parameters that are used in an older version.

    The first such use, on the lowest rank that has it; ``version`` is the step whose values it holds
    (``edited``: the values before an edit after that step). ``uses``, ``names`` and ``distance`` are of all such uses:
    their number, their parameters, and the largest absolute difference between backward and forward pass.
    """

    step: int
    micro_batch: int
    phase: str
    rank: int
    name: str
    version: int
    edited: bool
    uses: int
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    distance: float

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "distance": number(self.distance)}

    def sentence(self) -> str:
        """Return a sentence for the user that states what is proven."""
        step = f"before the edit after step {self.version}" if self.edited else f"of step {self.version}"
        return (
            f"{self.name} in {self.phase} of step {self.step}, micro-batch {self.micro_batch}, holds the values {step}"
        )


def find_stale(run: Values, reference: Values, *, racing: Collection[str] = ()) -> Stale | None:
    """Find uses of older versions. ``reference`` has the values that forward passes should hold (it has no secondary).

    Parameters that are ``racing`` are left out: a read that comes too early may well find an older version.
    """
    stale: list[tuple[Use, int, int, bool]] = []
    quantized = any(map(_quantizes, reference.uses.values()))
    for rank, uses in sorted(run.uses.items()):
        older = _of_rank(uses, reference.uses.get(rank, ()), quantized)
        stale += [(use, rank, *version) for use, version in older if use.name not in racing]
    if not stale:
        return None
    first, rank, version, edited = min(stale, key=lambda row: (row[0].step, row[0].micro_batch, row[1]))
    return Stale(
        step=first.step,
        micro_batch=first.micro_batch,
        phase=first.phase,
        rank=rank,
        name=first.name,
        version=version,
        edited=edited,
        uses=len(stale),
        names=tuple(sorted({use.name for use, *_ in stale})),
        ranks=tuple(sorted({rank for _, rank, *_ in stale})),
        distance=max(use.distance for use, *_ in stale),
    )


def _quantizes(reference: Iterable[Use]) -> bool:
    """Check whether, in the first step, a backward pass holds other values than its forward pass."""
    first: int | None = None
    forward: dict[tuple[int, str], tuple[int, ...]] = {}
    for use in reference:
        first = use.step if first is None else first
        if use.step != first:
            break
        if use.phase == "forward":
            forward[use.micro_batch, use.name] = use.checksums
        elif use.phase == "backward" and use.checksums != forward.get((use.micro_batch, use.name), use.checksums):
            return True
    return False


def _of_rank(uses: Sequence[Use], reference: Sequence[Use], quantized: bool) -> Iterator[tuple[Use, tuple[int, bool]]]:
    expected = {use[:4]: use.checksums for use in reference if use.phase == "forward"}
    accepted = {(*key, use.checksums) for key, use in by_occurrence(reference, 4).items()} if quantized else set()
    versions: dict[tuple[str, int, int], tuple[int, bool]] = {}  # by name, part and checksum
    forward: dict[str, tuple[int, ...]] = {}
    right = True  # the run computed what the reference did, so far
    for key, use in by_occurrence(uses, 4).items():
        if use.phase == "backward":
            expected_sums = forward.get(use.name, use.checksums)
        else:
            expected_sums = expected.get(use[:4], use.checksums) if right else use.checksums
        if use.checksums != expected_sums and (*key, use.checksums) not in accepted:
            part_versions = [
                versions.get((use.name, part, have))
                for part, (have, want) in enumerate(zip(use.checksums, expected_sums, strict=True))
                if have != want
            ]
            found_versions = [version for version in part_versions if version is not None]
            older = [version for version in found_versions if version != (use.step, False)]
            if older and len(found_versions) == len(part_versions):
                yield use, min(older)
            right = False
        if use.phase == "forward":
            forward[use.name] = use.checksums
        if use.phase != "backward":
            for part, checksum in enumerate(use.checksums):
                versions.setdefault((use.name, part, checksum), (use.step, use.phase == "edit"))
