"""Several ranks on this machine: how their processes are forked and ended, and what they send.

:mod:`.launcher` starts them all: those that report to their parent (:mod:`.cluster`), those of a program that is
written for ``torchrun`` (:mod:`.processes`), and workers. :mod:`.child` is one process of them.
"""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def is_full(error: BaseException) -> bool:
    """Could something not be written, as the disk is full or read-only? What C++ hands on has the system's words."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return any(f"[Errno {number}]" in str(error) for number in _FULL)


class RankFailed(Exception):
    """A rank died, raised, or sent nothing any more: says which and why. ``status``: for a process to exit with.

    ``full``: the disk was, or nothing may be written there.
    """

    def __init__(self, rank: int, reason: str, *, status: int = 1, log: Path | None = None, full: bool = False) -> None:
        self.rank, self.reason, self.status, self.log, self.full = rank, reason, status, log, full
        where = f" (its output: {log})" if log is not None else ""
        super().__init__(f"rank {rank} {reason}{where}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickled as it was made: a worker's goes to its parent, where its text alone would not make one."""
        return partial(type(self), status=self.status, log=self.log, full=self.full), (self.rank, self.reason)
