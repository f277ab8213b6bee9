"""A script of a public repository, cloned when it is first needed: ``OWNER/NAME COMMIT SCRIPT [OPTION]...``."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from shared import tell

repository, commit, script, *options = sys.argv[1:]
of = repository if repository != "pytorch/examples" else f"{repository}/{Path(script).parent}"
clone = Path(tempfile.gettempdir(), "streamrace-reach", of.replace("/", "+") + "+" + commit[:12])
if not clone.exists():
    part = Path(tempfile.mkdtemp(dir=clone.parent.mkdir(parents=True, exist_ok=True) or clone.parent))
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", f"https://github.com/{repository}", part], check=True)
    if repository == "pytorch/examples":  # of which only one folder is needed
        subprocess.run(["git", "-C", part, "sparse-checkout", "set", Path(script).parent], check=True)
    subprocess.run(["git", "-C", part, "checkout", "--quiet", commit], check=True)
    if repository == "karpathy/nanoGPT":  # its own data would be downloaded
        (part / "data" / "tiny").mkdir()
        for name in ("train.bin", "val.bin"):
            np.arange(400, dtype=np.uint16).tofile(part / "data" / "tiny" / name)
    if not clone.exists():
        part.rename(clone)
place = clone / script
with tempfile.TemporaryDirectory() as folder:
    os.chdir(clone if repository == "karpathy/nanoGPT" else place.parent)
    sys.path.insert(0, str(clone if repository == "karpathy/minGPT" else place.parent))
    sys.argv = [str(place), *(option.replace("FOLDER", folder) for option in options)]
    runpy.run_path(str(place), run_name="__main__")
tell()
