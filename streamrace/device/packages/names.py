"""Parses releases of packages as users name them: ``deepspeed==0.13.4``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")  # PEP 508


class PackageError(Exception):
    """A package that is not available as requested. One sentence."""


class Package(NamedTuple):
    """``name`` and ``version`` in normalised spelling, so that they also name a folder."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def key(self) -> Version:
        """Return the key by which releases are sorted."""
        return Version(self.version)

    def is_said(self, text: str) -> bool:
        """Check whether ``text`` names this release."""
        name, _, version = text.partition("==")
        return canonicalize_name(name) == self.name and self.is_(version)

    def is_(self, version: str | None) -> bool:
        """Check whether ``version`` is the requested one. A build of it counts: 2.13.0+cpu is 2.13.0."""
        if version is None:
            return False
        try:
            actual, requested = Version(version), Version(self.version)
        except InvalidVersion:
            return False
        return actual == requested or (requested.local is None and actual.public == requested.public)


def is_name(text: str) -> bool:
    """Check whether ``text`` is the name of a package, and nothing else."""
    return _NAME.fullmatch(text) is not None


def parse(text: str, option: str = "--package") -> Package:
    """Parse ``NAME==VERSION``; other forms that pip would take are refused. Raise :class:`PackageError`."""
    name, equals, version = (part.strip() for part in text.partition("=="))
    if not is_name(name):
        raise PackageError(f"{option} takes NAME==VERSION, for example deepspeed==0.13.4, not '{text}'")
    if not equals or not version:
        raise PackageError(f"{option} {name} says no version: write, for example, {name}==1.2.3")
    try:
        return Package(canonicalize_name(name), str(Version(version)))
    except InvalidVersion:
        raise PackageError(f"{option} {text}: '{version}' is no version (one release, as 1.2.3)") from None


def several(texts: Sequence[str], option: str = "--package") -> tuple[Package, ...]:
    """Parse all texts, in order and without duplicates. Raise :class:`PackageError` for two versions of a package."""
    packages: dict[str, Package] = {}
    for text in texts:
        pkg = parse(text, option)
        first = packages.setdefault(pkg.name, pkg)
        if not first.is_(pkg.version):
            raise PackageError(f"{option} names two versions of {pkg.name}, {first.version} and {pkg.version}: say one")
    return tuple(packages.values())


def installed(name: str) -> str | None:
    """Return the version that this process would import, or None."""
    try:
        return version_of(name)
    except PackageNotFoundError:
        return None
