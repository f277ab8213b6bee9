"""Checks, for ``streamrace doctor``, whether the simulated GPU can run here, and how to install what is missing.

Uses only the standard library, never imports torch, and neither changes nor downloads anything. Each function yields
the items of one subject.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distributions
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Literal, NamedTuple

from streamrace import checkout, compiling
from streamrace.checkout import cache
from streamrace.compiling import BuildError
from streamrace.device import build, cache_entries, extras, substitute
from streamrace.device.torches.releases import not_tried
from streamrace.trace import wording

Tone = Literal["good", "absent", "warn", "bad"]

_GB = 1e9
_LEAST_MEMORY = 2 * _GB  # for a process with torch and a small model, which takes some 0.6
_LEAST = 0.1 * _GB
_BUILDS = 3 * _GB  # for a CPU build of torch's wheel
_EXTRAS = ("reports", "deepspeed", "watch", "triton", "ray")
_PROGRAM = "#include <vector>\nint main() { return 0; }\n"
# Commands that install packages: (C++ compiler, binutils).
_MANAGERS = {
    "apt-get": ("apt-get install g++", "apt-get install binutils"),
    "dnf": ("dnf install gcc-c++", "dnf install binutils"),
    "yum": ("yum install gcc-c++", "yum install binutils"),
    "zypper": ("zypper install gcc-c++", "zypper install binutils"),
    "pacman": ("pacman -S gcc", "pacman -S binutils"),
    "apk": ("apk add g++", "apk add binutils"),
}


class Diagnosis(NamedTuple):
    """An item. ``tone``: good; absent, and not needed; warn, if something fails; bad, if the device cannot run.

    ``fix``: a command, or a sentence that says what helps.
    """

    name: str
    tone: Tone
    says: str
    fix: str = ""


def examine() -> list[Diagnosis]:
    """Return all items, in display order."""
    subjects: tuple[Callable[[], Iterator[Diagnosis]], ...] = (
        _machine, _python, _torch, _compiled, _tools, _deepspeed, _extras, _disk,
    )  # fmt: skip
    return [item for subject in subjects for item in subject()]


def runs(items: list[Diagnosis]) -> bool:
    """Check whether the simulated GPU can run here."""
    return not any(item.tone == "bad" for item in items)


def _machine() -> Iterator[Diagnosis]:
    system, machine = platform.system(), platform.machine()
    cores, (free, total) = len(os.sched_getaffinity(0)) if system == "Linux" else os.cpu_count(), _memory()
    says = f"{system} {machine}, {wording.count(cores or 1, 'core')}, {_size(free)} of {_size(total)} memory free"
    if system != "Linux":
        yield Diagnosis("machine", "bad", says, "the simulated GPU runs on Linux alone: use a container of Linux")
    elif 0 < free < _LEAST_MEMORY:
        yield Diagnosis("machine", "warn", says, "end other programs, or take small models: a larger one may not fit")
    else:
        yield Diagnosis("machine", "good", says)


def _memory() -> tuple[float, float]:
    """Return free and total bytes, of the machine or of a smaller container. 0: not known."""
    sizes = {}
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            sizes[name] = int(value.split()[0]) * 1024
    free, total = float(sizes.get("MemAvailable", 0)), float(sizes.get("MemTotal", 0))
    with suppress(OSError, ValueError):  # "max" is not a number
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        left = limit - int(Path("/sys/fs/cgroup/memory.current").read_text())
        free, total = min(free, left), min(total, limit)
    return free, total


def _python() -> Iterator[Diagnosis]:
    says = f"{platform.python_version()} ({sys.executable})"
    yield Diagnosis("Python", "good", says)  # an older Python is refused earlier
    root = checkout.root()
    where = f", in the checkout {root}" if root else ""
    if extras.outside() is None:
        yield Diagnosis("streamrace", "good", f"{extras.version()}{where}")
        return
    ready = root is not None and (root / ".venv" / "bin" / "python").exists()
    fix = f". {root}/.venv/bin/activate" if ready else f"make -C {root} setup" if root else ""
    yield Diagnosis("streamrace", "bad", f"not installed for this Python{where}", fix)


def _torch() -> Iterator[Diagnosis]:
    try:
        version = version_of("torch")
        build.torch_folder()
    except (PackageNotFoundError, BuildError):
        yield Diagnosis("torch", "bad", "not installed", _bringing("watch"))
        return
    tried = _tried(version)
    tone: Tone = "warn" if "not" in tried else "good"
    if not substitute.needed():
        yield Diagnosis("torch", tone, f"{version}, a CPU build{tried}")
        return
    place, plain = _cpu_build(version), version.partition("+")[0]
    if place is not None:
        plan = f"its CPU build is used instead, which is in the cache ({place})"
    else:
        plan = (
            f"the first command makes a CPU build of torch {plain} in {cache()}, once: it downloads torch's wheel, "
            "some 0.6 to 0.9 GB"
        )
    yield Diagnosis("torch", tone, f"{version}{tried}, a CUDA build: {plan}")


def _cpu_build(version: str) -> Path | None:
    """Return the cached CPU build of this version for this Python, or None."""
    begin, python = f"{version.partition('+')[0]}-", f"{sys.version_info.major}{sys.version_info.minor}"
    for kind, _, place in cache_entries.places():
        if kind == cache_entries.TORCH and place.name.startswith(begin) and f"-{python}-" in f"{place.name}-":
            return place
    return None


def _makes_cpu_build() -> bool:
    """Check whether the first command has to make a CPU build of torch."""
    return substitute.needed() and _cpu_build(version_of("torch")) is None


def _tried(version: str) -> str:
    """Return a note on whether this version of torch was tried."""
    return ", not tried here" if not_tried(version) else ", tried"


def _compiled() -> Iterator[Diagnosis]:
    """Yield the C++ parts: built already, or when first needed."""
    for name, place, needed, seconds in _parts():
        if place.exists():
            yield Diagnosis(name, "good", f"built ({place.name})")
        elif compiling.find_compiler() is not None:
            yield Diagnosis(name, "absent", f"not built yet: the first command that needs it builds it, in {seconds}")
        elif needed:
            yield Diagnosis(name, "bad", "not built yet, and there is no C++ compiler for it", _install(0))
        else:
            yield Diagnosis(name, "warn", "not built, without a compiler: Python does the same, slower", _install(0))


def _parts() -> Iterator[tuple[str, Path, bool, str]]:
    """Yield name, place, whether the part is required, and the build time."""
    version = None
    with suppress(PackageNotFoundError):
        version = version_of("torch")
    if version is not None and substitute.needed():
        place = _cpu_build(version)
        torches = [*distributions(name="torch", path=[str(place)])] if place else []
        version = torches[0].version if torches else None
    if version is not None:  # without torch the simulated GPU cannot be built
        with suppress(BuildError):
            yield "simulated GPU", build.place(version), True, "half a minute"
    for name, module in (
        ("race engine", "streamrace.detectors.native.build"),
        ("replay engine", "streamrace.replay.native.build"),
    ):
        with suppress(BuildError, ModuleNotFoundError):  # a missing numpy is reported elsewhere
            yield name, import_module(module).place(), False, "some seconds"


def _tools() -> Iterator[Diagnosis]:
    """Yield the build tools: a compiler is needed for unbuilt parts only, binutils to make a CPU build of torch."""
    compiler = compiling.find_compiler()
    if compiler is None:
        yield Diagnosis("compiler", "warn", "there is no C++ compiler (CXX names one)", _install(0))
    else:
        banner = _ran([compiler, "--version"]).stdout.partition("\n")[0] or compiler
        result = _ran([compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], _PROGRAM)
        if result.returncode:
            yield Diagnosis("compiler", "bad", f"{banner} does not compile C++20", _install(0))
        else:
            yield Diagnosis("compiler", "good", banner)
    lacking = [tool for tool in ("nm", "objdump") if shutil.which(tool) is None]
    if not lacking:
        yield Diagnosis("binutils", "good", "nm and objdump")
        return
    says = f"there is no {' and no '.join(lacking)}: a CPU build of torch's wheel is made with them"
    yield Diagnosis("binutils", "bad" if _makes_cpu_build() else "absent", says, _install(1))


def _ran(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _install(which: int) -> str:
    """Return the package manager's command for the compiler (0) or binutils (1)."""
    for manager, commands in _MANAGERS.items():
        if shutil.which(manager):
            return commands[which] if os.geteuid() == 0 else f"sudo {commands[which]}"
    return ("install a C++ compiler: g++ or clang", "install binutils")[which]


def _deepspeed() -> Iterator[Diagnosis]:
    try:
        version = version_of("deepspeed")
    except PackageNotFoundError:
        says = "not installed: 'run', 'fuzz', 'dry' and the studies need it"
        yield Diagnosis("DeepSpeed", "absent", says, _bringing("deepspeed"))
        return
    tried = ""
    with suppress(ModuleNotFoundError):
        known = version in import_module("streamrace.frameworks.deepspeed.releases").KNOWN
        tried = ", tried" if known else ", not tried here"
    yield Diagnosis("DeepSpeed", "warn" if "not" in tried else "good", f"{version}{tried}")


def _extras() -> Iterator[Diagnosis]:
    """Yield the extras that are complete, and those that are not. ``check``, the main command, needs ``reports``."""
    missing = {name: lacking for name, lacking in extras.missing().items() if name in _EXTRAS}
    complete = [name for name in _EXTRAS if missing.get(name) == []]
    if complete:
        yield Diagnosis("extras", "good", f"{', '.join(complete)}: installed")
    for name in _EXTRAS:
        if lacking := missing.get(name):
            some = wording.few(lacking, 4)
            needs = ": 'check' and the commands that make pages need it" if name == "reports" else ""
            says = f"'{name}' lacks {some}{needs}"
            yield Diagnosis("extra", "warn" if name == "reports" else "absent", says, _bringing(name))


def _bringing(extra: str) -> str:
    """Return the command that installs an extra into this environment; empty if the project itself is not installed."""
    root = checkout.root()
    if extras.outside() is not None:
        return ""
    if root is None:
        return f"pip install '{extras.PROJECT}[{extra}]'"
    if extra not in ("ray", "triton") and Path(sys.prefix) == root / ".venv":
        return f"make -C {shlex.quote(str(root))} setup"
    return f"pip install --editable {shlex.quote(f'{root}[{extra}]')}"


def _disk() -> Iterator[Diagnosis]:
    least = _BUILDS if _makes_cpu_build() else _LEAST
    yield _room("cache", cache(), least, "'streamrace cache clear' makes room; STREAMRACE_CACHE names another folder")
    yield _room("runs", Path("runs").absolute(), _LEAST, "work in another folder, or say --runs FOLDER")


def _room(name: str, folder: Path, least: float, fix: str) -> Diagnosis:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return Diagnosis(name, "bad", f"{folder} cannot be written", fix)
    free = shutil.disk_usage(existing).free
    return Diagnosis(name, "warn" if free < least else "good", f"{free / _GB:.1f} GB free in {folder}", fix)


def _size(count: float) -> str:
    return f"{count / _GB:.1f} GB" if count else "unknown"
