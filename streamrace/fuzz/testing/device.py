"""Decides where marked tests run: in a separate process with a simulated GPU (``testing.house``), or in the session's.

``stream_race_device = cuda`` in the ini file, or ``pytest --stream-device cuda``, gives the session's own process the
GPU: then all of its tests and modules may use ``cuda``, and the marked tests run in it. The GPU has to exist before
torch is imported, and stays until the session ends: so it is given only on request. This file does not import torch.
"""

from __future__ import annotations

import sys

import pytest

INI, FLAG, CUDA = "stream_race_device", "--stream-device", "cuda"
_ON_GPU = "--stream-on-gpu"
_ASK = f"'{INI} = {CUDA}' in pytest's ini file, or pytest {FLAG} {CUDA}, gives the whole session a simulated one"
# Messages of a CPU build of torch when a GPU is requested.
_NO_GPU = (
    "Torch not compiled with CUDA enabled",
    "torch.cuda.Stream requires CUDA support",
    "Tried to instantiate dummy base class",
    "Cannot access accelerator device when none is available",
    "Cannot get CUDA generator without ATen_cuda library",
    "PyTorch is not linked with support for cuda devices",
    "Found no NVIDIA driver",
)


def add_option(parser: pytest.Parser) -> None:
    """Add the option and the ini value that request the GPU."""
    group = parser.getgroup("stream races")
    group.addoption(
        FLAG,
        metavar="DEVICE",
        choices=(CUDA,),
        help=f"{CUDA}: all of the session has a simulated GPU, which stream_race tests have anyway",
    )
    group.addoption(
        _ON_GPU,
        action="store_true",
        help="run each stream_race test once, on this machine's GPU, and judge what torch gave to it",
    )
    parser.addini(INI, f"'{CUDA}': all of the session has a simulated GPU, which stream_race tests have anyway")


def start(config: pytest.Config) -> None:
    """Start the GPU if the session requests it. Raises :class:`pytest.UsageError`."""
    if not requested(config) or config.known_args_namespace.help:
        return
    from streamrace.compiling import BuildError
    from streamrace.device import launch, library

    if library.active():
        return
    if "torch" in sys.modules:
        raise pytest.UsageError(
            "the simulated GPU has to be there before torch is imported, and torch is imported already, by a plugin of "
            "pytest or by the program that started it: leave that plugin out (-p no:NAME), or import torch later"
        )
    try:
        launch.start()
    except (BuildError, RuntimeError) as problem:
        raise pytest.UsageError(f"there can be no simulated GPU ({_source(config)}): {problem}") from None


def on_gpu(config: pytest.Config) -> bool:
    """Check whether marked tests run on this machine's own GPU."""
    return bool(getattr(config.known_args_namespace, "stream_on_gpu", False))


def has_gpu() -> bool:
    """Check whether this process has a simulated GPU."""
    library = sys.modules.get("streamrace.device.library")
    return library is not None and bool(library.active())


def requested(config: pytest.Config) -> bool:
    """Check whether the session requests the GPU. Raises :class:`pytest.UsageError` for an unknown device."""
    setting = _flag(config) or str(config.getini(INI)).strip()
    if setting not in ("", CUDA):
        raise pytest.UsageError(f"{INI} is '{CUDA}' or nothing, not '{setting}'")
    return bool(setting)


def repeated(config: pytest.Config) -> str:
    """Return the option that a command needs to run on the same device again, preceded by a space."""
    return f" {FLAG} {CUDA}" if _flag(config) else ""


def missed(message: str) -> str | None:
    """Explain why a file of marked tests cannot be imported; None if the reason is not a missing GPU.

    The session's own process imports the file, too, and has no GPU for its modules and unmarked tests.
    """
    request = next((phrase for phrase in _NO_GPU if phrase in message), None)
    if request is None:
        return None
    return f"only stream_race tests have a GPU here, and this file asks for one when it is imported ({request}): {_ASK}"


def _source(config: pytest.Config) -> str:
    return FLAG if _flag(config) else INI


def _flag(config: pytest.Config) -> str:
    """Return the option's value, even before the command line is parsed completely."""
    return getattr(config.known_args_namespace, "stream_device", None) or ""
