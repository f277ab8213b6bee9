"""Runs several ranks on this machine: forks and ends their processes, and carries their messages.

:mod:`.launcher` starts all of them: ranks that report to their parent (:mod:`.cluster`), ranks of a program written for
``torchrun`` (:mod:`.processes`), and workers. One such process is a :class:`streamrace.process.child.Child`.
"""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def is_full(error: BaseException) -> bool:
    """Check whether a write failed on a full or read-only disk. Errors from C++ are known by the system's text."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return any(f"[Errno {number}]" in str(error) for number in _FULL)


class RankFailed(Exception):
    """A rank died, raised, or fell silent: names the rank and the reason. ``status``: exit status for this process.

    ``full``: the disk was full or read-only.
    """

    def __init__(self, rank: int, reason: str, *, status: int = 1, log: Path | None = None, full: bool = False) -> None:
        self.rank, self.reason, self.status, self.log, self.full = rank, reason, status, log, full
        output = f" (its output: {log})" if log is not None else ""
        super().__init__(f"rank {rank} {reason}{output}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all arguments: an error goes from a worker to its parent, and its text alone would not rebuild it."""
        return partial(type(self), status=self.status, log=self.log, full=self.full), (self.rank, self.reason)
