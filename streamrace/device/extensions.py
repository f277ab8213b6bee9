"""Loads compiled parts of other libraries that were built for CUDA, such as torchvision's and torchaudio's.

A CPU build of torch lacks the libraries that these parts are linked with. Stubs replace them
(:mod:`streamrace.device.torches.stubs`, built once and kept), as for torch's own CUDA part. The parts' CUDA kernels
cannot run: the device uses their CPU kernels, as for torch's own operators, and refuses by name those without any.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import tempfile
import warnings
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from streamrace.checkout import cache
from streamrace.compiling import BuildError, once
from streamrace.device.imports import OF_TORCH, needed
from streamrace.device.torches import stubs

_kept: list[torch.library.Library] = []


def install() -> None:
    """Intercept ``torch.ops.load_library``, which loads such parts, and imports of torch's own compiled modules."""
    loader: Any = ExtensionFileLoader
    created, kind = loader.create_module, type(torch.ops)  # type: Any, Any
    plain = kind.load_library

    def create_module(self: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
        if spec.name in OF_TORCH and spec.origin:
            _load_stubs(Path(spec.origin))
        return created(self, spec)  # type: ignore[no-any-return]

    @functools.wraps(plain)
    def load_library(self: Any, path: Any) -> None:
        if not _load_stubs(Path(path)):
            plain(self, path)
            return
        before = set(torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"))
        plain(self, path)
        for name in sorted(set(torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")) - before):
            torch.ops.simgpu.falls_back(*name.partition(".")[::2])
        _without_version()

    kind.load_library = load_library
    loader.create_module = create_module


def _without_version() -> None:
    """Report no CUDA version for torchvision, which refuses to load if its CUDA version differs from torch's."""
    if hasattr(torch.ops.torchvision, "_cuda_version") and not _kept:
        _kept.append(torch.library.Library("torchvision", "IMPL"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about replacing an existing kernel
            for key in ("CompositeImplicitAutograd", "CompositeExplicitAutograd"):  # 0.29 registers it for the second
                _kept[0].impl("_cuda_version", lambda: -1, key)


def _load_stubs(file: Path) -> bool:
    """Load stubs for the CUDA libraries that ``file`` is linked with. Return whether there are any."""
    bundled = [*file.parent.glob("*.so*"), *file.parent.parent.glob("*.libs/*.so*")]
    bundled_names = {library.name for library in bundled}
    missing = [name for name in needed(str(file)) if name.startswith(stubs.OF_CUDA) and name not in bundled_names]
    for library in sorted(_stubs(file, missing, bundled).glob("*.so*")) if missing else ():
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    return bool(missing)


def _stubs(file: Path, missing: list[str], bundled: list[Path]) -> Path:
    """Return the folder with the stubs, built if necessary. Raise OSError, as for a library that cannot be loaded."""
    source = Path(stubs.__file__).read_bytes()
    digest = hashlib.sha256(file.read_bytes() + torch.__version__.encode() + source).hexdigest()[:16]
    place = cache() / "stubs" / f"{file.name.partition('.')[0]}-{digest}"

    def make() -> None:
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            built = Path(folder) / "made"
            stubs.beside(file, missing, bundled, built)
            shutil.move(built, place)

    try:
        return once(place, make)
    except BuildError as error:
        raise OSError(f"streamrace: {file.name} is compiled for CUDA, and {error}") from error
