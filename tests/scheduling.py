"""How tests are spread over the workers of xdist."""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler.loadscope import LoadScopeScheduling

# Folders whose files share fixtures that take seconds to make: recordings, references, runs.
TOGETHER = ("tests/fuzz/recorded", "tests/device/zero", "tests/runs")


def scope_of(nodeid: str) -> str:
    """The file that the test is of, or the folder whose files are run together."""
    file = nodeid.partition("::")[0]
    folder = str(PurePosixPath(file).parent)
    return folder if folder in TOGETHER else file


class ByFile(LoadScopeScheduling):
    """The tests of a file go to one worker, as do those of a folder of :data:`TOGETHER`: no fixture is made twice.

    xdist's own ``loadscope`` takes a test's name apart at the last ``::``, which may be in its parameters
    (``kernel:aten::copy_``).
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
