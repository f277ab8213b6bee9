"""Runs a script under the recorder: ``recorded.py FOLDER SCRIPT [ARGUMENTS]`` writes the traces into FOLDER."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import torch

from streamrace.recorder import Recorder
from streamrace.trace.files import TraceWriter, file_of

folder, script = Path(sys.argv[1]), sys.argv[2]
sys.argv = sys.argv[2:]
sys.path[0] = str(Path(script).absolute().parent)
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
folder.mkdir(parents=True, exist_ok=True)
writer = TraceWriter(file_of(folder, rank), rank=rank, world=world, info={})
recorder = Recorder(writer.write, skipped=("/recorded.py", "<frozen runpy>"))
torch.cuda.init()
recorder.start()
runpy.run_path(script, run_name="__main__")
recorder.stop()
writer.close()
sys.stdout.flush()
os._exit(0)
