"""Unpacks torch's wheel as a CPU build that declares itself as one, and packs it again for pip to install."""

from __future__ import annotations

import base64
import csv
import hashlib
import re
import zipfile
from pathlib import Path

from streamrace.compiling import BuildError
from streamrace.device.torches.stubs import OF_CUDA, stub

_UNUSED = ("torch/bin/ptxas", "torch/bin/protoc", "torch/bin/nvdisasm", "torch/test/", "torch/bin/test")
# Requirements of CUDA builds only: NVIDIA's libraries, and the compiler of kernels.
_ASKS_FOR_CUDA = re.compile(r"^Requires-Dist: (nvidia-|cuda-|triton\b|pytorch-triton)", re.IGNORECASE)


def unpack(wheel: Path, place: Path) -> None:
    """Unpack ``wheel``: a CUDA build without its CUDA part, and without files that only compile or test that part.

    A CPU build is unpacked as it is. Raise :class:`streamrace.compiling.BuildError`.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            of_cuda = any(_is_of_cuda(name) for name in archive.namelist())
            for entry in archive.infolist():
                if of_cuda and (entry.filename.startswith(_UNUSED) or _is_of_cuda(entry.filename)):
                    continue
                path = Path(archive.extract(entry, place))
                if not entry.is_dir() and entry.external_attr >> 16 & 0o111:
                    path.chmod(0o755)
    except (zipfile.BadZipFile, OSError) as error:
        raise BuildError(f"{wheel.name} cannot be unpacked: {error}") from error
    if of_cuda:
        stub(place / "torch")
        _as_cpu(place / "torch" / "version.py")
        _describe(place)


def _is_of_cuda(name: str) -> bool:
    return name.rpartition("/")[2].startswith(OF_CUDA)


def _as_cpu(file: Path) -> None:
    """Make ``torch.version`` that of a CPU build: programs and torch's own files read which build this is."""
    text = re.sub(r"^(cuda\b[^=]*= ).*$", r"\1None", file.read_text(), flags=re.MULTILINE)
    file.write_text(re.sub(r"^(__version__ = '[^'+]*)(\+[^']*)?'", r"\1+cpu'", text, flags=re.MULTILINE))


def information(place: Path) -> Path:
    """Return the folder that describes the distribution in ``place``. Raise :class:`BuildError`."""
    folders = [*place.glob("torch-*.dist-info")]
    if len(folders) != 1:
        raise BuildError(f"{place} is no wheel of torch: it does not say which version it is")
    return folders[0]


def requirements(place: Path) -> list[str]:
    """Return the requirements of the build in ``place``, without its extras."""
    lines = (information(place) / "METADATA").read_text(encoding="utf-8").splitlines()
    listed = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    return [requirement for requirement in listed if "extra ==" not in requirement]


def _describe(place: Path) -> None:
    """Make the distribution's metadata those of a CPU build, too: its version, requirements and list of files."""
    info = information(place)
    version = info.name.removesuffix(".dist-info").partition("-")[2].partition("+")[0] + "+cpu"
    file = info / "METADATA"
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not _ASKS_FOR_CUDA.match(line)]
    text = re.sub(r"^Version: .*$", f"Version: {version}", "\n".join(lines) + "\n", count=1, flags=re.MULTILINE)
    file.write_text(text, encoding="utf-8")
    named = info.rename(info.with_name(f"torch-{version}.dist-info"))
    record = named / "RECORD"
    with record.open(newline="", encoding="utf-8") as read:
        rows = {row[0].replace(f"{info.name}/", f"{named.name}/", 1): row[1:] for row in csv.reader(read) if row}
    changed = {"torch/version.py", f"{named.name}/METADATA", *(f"torch/{so.name}" for so in place.glob("torch/_C.*"))}
    names = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    with record.open("w", newline="", encoding="utf-8") as write:
        for name in names:
            recorded = rows.get(name) if name not in changed else None
            csv.writer(write, lineterminator="\n").writerow([name, *(recorded or _told(place / name, record))])


def _told(file: Path, record: Path) -> list[str]:
    if file == record:
        return ["", ""]
    digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
    return [f"sha256={digest}", str(file.stat().st_size)]


def pack(place: Path, folder: Path) -> Path:
    """Pack the build in ``place`` as a wheel in ``folder``, for pip. Not compressed, as it is unpacked at once."""
    info = information(place)
    tag = re.search(r"^Tag: (\S+)$", (info / "WHEEL").read_text(encoding="utf-8"), re.MULTILINE)
    wheel = folder / f"{info.name.removesuffix('.dist-info')}-{tag[1] if tag else 'py3-none-any'}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(place.rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                archive.write(file, file.relative_to(place))
    return wheel
