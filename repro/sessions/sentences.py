"""Classifies errors that are reported in one sentence, by module and class. Imports only the standard library.

Classes are looked up by name in loaded modules: a module that is not imported cannot have raised.
"""

from __future__ import annotations

import errno
import sys

# Requests that cannot be met.
_REFUSALS = (
    ("streamrace.fuzz.live.runs", "UnwrittenTrace"),
    ("streamrace.detectors.live.incident", "IncidentError"),
    ("streamrace.detectors.values.recordings", "RecordingError"),
    ("streamrace.reports.data.schema", "ReportError"),
    ("streamrace.frameworks.deepspeed.releases", "ReleaseError"),
    ("streamrace.replay.faults", "ReplayError"),
    ("streamrace.replay.names", "UnknownOperation"),
    ("streamrace.device.tokens", "TokenError"),
    ("streamrace.trace.records", "TraceError"),
    ("streamrace.scenarios.base", "ScenarioError"),
    ("streamrace.scenarios.sharding.strategy", "ShardingError"),
    ("streamrace.compiling", "BuildError"),
    ("streamrace.device.packages.names", "PackageError"),
    ("streamrace.device.hardware.profile", "ProfileError"),
    ("streamrace.device.scripts", "WrongUse"),
)
_FAILURES = (("streamrace.fuzz.engines", "EngineError"), ("streamrace.device.ranks.cluster", "RankFailed"))

# System errors about a file or folder that cannot be used; all others are bugs of ours.
_PLACES = (
    "ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "ENXIO", "ENOENT", "ENOTDIR", "EISDIR", "EEXIST",
    "ENOTEMPTY", "ENAMETOOLONG", "ELOOP", "EMFILE", "ENFILE", "EPIPE",
)  # fmt: skip
_UNWRITABLE = ("ENOSPC", "EDQUOT", "EFBIG", "EROFS")


def is_one(error: BaseException, *classes: tuple[str, str]) -> bool:
    """Check whether the error is of one of these classes, each given by module and name."""
    modules = ((sys.modules.get(module), name) for module, name in classes)
    return isinstance(error, tuple(getattr(module, name, ()) for module, name in modules if module is not None))


def failed(error: BaseException) -> bool:
    """Check whether a rank or a worker failed."""
    return is_one(error, *_FAILURES)


def refused(error: BaseException) -> bool:
    """Check whether the request cannot be met, or a file cannot be written."""
    return is_one(error, *_REFUSALS) or (isinstance(error, OSError) and no_place(error) is not None)


def no_place(error: OSError) -> str | None:
    """Return the sentence for a place that cannot be used, full or read-only; None for other errors."""
    name = errno.errorcode.get(error.errno or 0)
    if name not in _PLACES:
        return None
    verb = "write" if name in _UNWRITABLE else "use"
    file = "a file" if error.filename is None else str(error.filename)
    return f"cannot {verb} {file}: {error.strerror}"
