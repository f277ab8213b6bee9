"""Compiled parts of other libraries that were built for CUDA, torchvision's and torchaudio's above all.

A CPU build of torch has not what they are linked with. So stubs stand for that (:mod:`streamrace.device.torches.stubs`,
made once and kept), as they do for torch's own CUDA part. Their kernels for CUDA are none here: the device takes the
CPU's, as for torch's own operators, and refuses by name what has none.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from streamrace.device.compiling import BuildError, cache, once
from streamrace.device.imports import needed
from streamrace.device.torches import stubs


def install() -> None:
    """Stand in the way of ``torch.ops.load_library``, by which such parts are loaded."""
    kind: Any = type(torch.ops)
    plain = kind.load_library

    @functools.wraps(plain)
    def load_library(self: Any, path: Any) -> None:
        file = Path(path)
        bundled = [*file.parent.glob("*.so*"), *file.parent.parent.glob("*.libs/*.so*")]
        there = {one.name for one in bundled}
        wanted = [one for one in needed(str(file)) if one.startswith(stubs.OF_CUDA) and one not in there]
        if not wanted:
            plain(self, path)
            return
        for library in sorted(_stubs(file, wanted, bundled).glob("*.so*")):
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        before = set(torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"))
        plain(self, path)
        for name in sorted(set(torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")) - before):
            torch.ops.simgpu.falls_back(*name.partition(".")[::2])

    kind.load_library = load_library


def _stubs(file: Path, wanted: list[str], bundled: list[Path]) -> Path:
    """The folder that has them. Raises OSError, as where a library cannot be loaded."""
    digest = hashlib.sha256(file.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    place = cache() / "stubs" / f"{file.name.partition('.')[0]}-{digest}"

    def make() -> None:
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            made = Path(folder) / "made"
            stubs.beside(file, wanted, bundled, made)
            shutil.move(made, place)

    try:
        return once(place, make)
    except BuildError as error:
        raise OSError(f"streamrace: {file.name} is compiled for CUDA, and {error}") from error
