"""Installs the requirements of a release that the environment lacks, in the same way as the release itself.

A requirement that is present in an unwanted version is left as it is, and reported: two versions of torch or numpy
cannot be in one process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from streamrace.device.packages import installing, names
from streamrace.device.packages.installing import Tell
from streamrace.device.packages.names import Package, PackageError

# Never installed with a release: these packages decide what the simulated GPU is, or need a real one.
_NEVER = ("torch", "triton", "pytorch-triton")
_NEVER_BEGINNING = ("nvidia-", "cuda-")


def places(wanted: Sequence[Package], folder: Path, tell: Tell) -> list[Path]:
    """Return the folders of the ``wanted`` releases that the environment lacks, then of their missing requirements.

    Raise :class:`PackageError` if a ``wanted`` release is unavailable. Unavailable requirements are only reported.
    """
    found = [installing.make(one, folder, tell) for one in wanted if not one.is_(names.here(one.name))]
    versions = {one.name: one.version for one in wanted}
    for place in found:  # grows during the loop
        owner = installing.package_in(place)
        for requirement in _asks(place):
            name = canonicalize_name(requirement.name)
            if name in _NEVER or name.startswith(_NEVER_BEGINNING):
                continue
            there = versions.get(name) or names.here(name)
            other = _given(name, found) if there is None else None
            if other and owner:
                tell(f"{owner.said} asks for {name}: that of {other.said} is taken")
                versions[name] = other.version
            elif there is None:
                of_torch = built_for(name, versions.get("torch") or names.here("torch") or "")
                more = _beside(owner, of_torch or requirement, folder, tell)
                made = more and installing.package_in(more)
                if more and made:
                    found.append(more)
                    versions[name] = made.version
            elif not requirement.specifier.contains(there, prereleases=True) and owner:
                tell(f"{owner.said} asks for {name}{requirement.specifier}, and {there} is here: it is left")
    return found


def built_for(name: str, torch: str) -> Requirement | None:
    """Return the release of torchvision or torchaudio built for that torch version; None for other libraries."""
    found = re.match(r"2\.(\d+)\.(\d+)", torch)
    if found is None or name not in ("torchvision", "torchaudio"):
        return None
    minor, patch = map(int, found.groups())
    if name == "torchaudio":  # from 2.11 on, one release is built for all later torch releases
        return Requirement(f"torchaudio=={torch.partition('+')[0]}" if minor < 11 else "torchaudio>=2.11")
    return Requirement(f"torchvision==0.{minor + 15}.{patch}")


def _asks(place: Path) -> list[Requirement]:
    one = installing.distribution(place)
    found = []
    for text in (one.requires if one else None) or []:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # in old releases; pip does not accept it either
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found.append(requirement)
    return found


def _given(name: str, found: Sequence[Path]) -> Package | None:
    """Return the package that provides this module already: fbgemm-gpu-cpu is fbgemm-gpu, built without a GPU."""
    module = name.replace("-", "_")
    for place in found:
        if (place / module / "__init__.py").is_file() or (place / f"{module}.py").is_file():
            return installing.package_in(place)
    return None


def _beside(owner: Package | None, requirement: Requirement, folder: Path, tell: Tell) -> Path | None:
    asks = f"{owner.said if owner else 'it'} asks for {requirement.name}{requirement.specifier}, which is not here"
    try:
        place = installing.make_some(requirement, folder, tell)
    except PackageError as problem:
        tell(f"{asks} ({problem}): going on without")
        return None
    made = installing.package_in(place)
    tell(f"{asks}: {made.said if made else 'nothing'} beside it")
    return place
