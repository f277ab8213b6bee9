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
    folders = [installing.make(pkg, folder, tell) for pkg in wanted if not pkg.is_(names.installed(pkg.name))]
    versions = {pkg.name: pkg.version for pkg in wanted}
    for place in folders:  # grows during the loop
        owner = installing.package_in(place)
        for requirement in _asks(place):
            name = canonicalize_name(requirement.name)
            if name in _NEVER or name.startswith(_NEVER_BEGINNING):
                continue
            version = versions.get(name) or names.installed(name)
            provider = _given(name, folders) if version is None else None
            if provider and owner:
                tell(f"{owner.title} asks for {name}: {provider.title} provides it")
                versions[name] = provider.version
            elif version is None:
                of_torch = built_for(name, versions.get("torch") or names.installed("torch") or "")
                added = _beside(owner, of_torch or requirement, folder, tell)
                package = added and installing.package_in(added)
                if added and package:
                    folders.append(added)
                    versions[name] = package.version
            elif not requirement.specifier.contains(version, prereleases=True) and owner:
                tell(f"{owner.title} asks for {name}{requirement.specifier}, and {version} is installed: it stays")
    return folders


def built_for(name: str, torch: str) -> Requirement | None:
    """Return the release of torchvision or torchaudio built for that torch version; None for other libraries."""
    match = re.match(r"2\.(\d+)\.(\d+)", torch)
    if match is None or name not in ("torchvision", "torchaudio"):
        return None
    minor, patch = map(int, match.groups())
    if name == "torchaudio":  # from 2.11 on, one release is built for all later torch releases
        return Requirement(f"torchaudio=={torch.partition('+')[0]}" if minor < 11 else "torchaudio>=2.11")
    return Requirement(f"torchvision==0.{minor + 15}.{patch}")


def _asks(place: Path) -> list[Requirement]:
    installed = installing.distribution(place)
    requirements = []
    for text in (installed.requires if installed else None) or []:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # in old releases; pip does not accept it either
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            requirements.append(requirement)
    return requirements


def _given(name: str, folders: Sequence[Path]) -> Package | None:
    """Return the package that provides this module already: fbgemm-gpu-cpu is fbgemm-gpu, built without a GPU."""
    module = name.replace("-", "_")
    for place in folders:
        if (place / module / "__init__.py").is_file() or (place / f"{module}.py").is_file():
            return installing.package_in(place)
    return None


def _beside(owner: Package | None, requirement: Requirement, folder: Path, tell: Tell) -> Path | None:
    asks = f"{owner.title if owner else 'it'} asks for {requirement.name}{requirement.specifier}, which is not here"
    try:
        place = installing.make_some(requirement, folder, tell)
    except PackageError as problem:
        tell(f"{asks} ({problem}): going on without")
        return None
    package = installing.package_in(place)
    tell(f"{asks}: {package.title if package else 'nothing'} beside it")
    return place
