"""``python -m streamrace.device --trace OWN beside.py TRACE SCRIPT [ARGUMENTS]``: the recorder beside the device's own trace.

On the simulated GPU three things are not as in a CUDA build: its collectives are no operators of c10d, its streams run
them where the device says, and ``torch.Event`` and ``torch.Stream`` have their queries in C.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

from streamrace.device import collectives
from streamrace.recorder import Recorder
from streamrace.trace.files import TraceWriter, file_of

folder, script = Path(sys.argv[1]), sys.argv[2]
sys.argv = sys.argv[2:]
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
writer = TraceWriter(file_of(folder, rank), rank=rank, world=world, info={})
recorder = Recorder(writer.write, skipped=("/beside.py", "<frozen runpy>"))
plain_issue = collectives.issue


def issue(job: Any, *, stream: Any) -> None:
    with recorder.told(job.kernel, job.reads, job.writes, job.members, job.origin, job.root, stream.stream_id):
        plain_issue(job, stream=stream)


recorder.start()
try:
    sys.path.insert(0, str(Path(script).absolute().parent))
    runpy.run_path(script, run_name="__main__")
finally:
    recorder.stop()
    writer.close()
