"""``python -m benchmarks.same_findings OLD_CHECKOUT [NEW_CHECKOUT]``: compares the findings of two versions.

Ten commands run in each checkout, as ``streamrace ...`` of this interpreter. Exit status and all files of a run are
compared: JSON, CSV, Parquet, and the traces, record by record, as each checkout's own reader decodes them. ``RENAMED``
maps fields that have another name today. Exit status 0 where all is equal, 1 where something differs.

Left out, as two versions may differ in it and still find the same:

* what is written from the findings for a person: pages, ``report.md``, the terminal;
* ``logs/`` (DeepSpeed writes the time into them) and Hypothesis' own files (binary, with keys of its own);
* ``host_s`` of a dry run, which is measured, and the digest that seals a trace, which is over its bytes;
* absolute paths: the checkout, and the folder in which the command ran, are written as ``CHECKOUT`` and ``FOLDER``;
* the number of a folder in ``recordings/``, which is a digest of the scenario with the names of its fields;
* where the project's *own* code stood: file, line and function of frames in its packages, how many of them follow each
  other, and the lines of such files in ``sources.json``; likewise Python's multiprocessing, which starts the ranks.
  Frames of torch, DeepSpeed, transformers and the checked program are compared whole. Stacks are compared where they
  are used, not by their numbers in a file; trailing frames of the project's own code are dropped;
* whether a field without a value is written as null or not at all, and whether a whole number is written 1 or 1.0.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
import pandas as pd
from rich.console import Console
from rich.markup import escape

# Old name -> new name, of a field of any file, of a column, of a record of the trace or of one of its fields.
RENAMED: dict[str, str] = {
    "sight": "probe",
    "Sight": "Probe",
    "Seen": "Probed",
    "shown": "manifested",
    "margin_ns": "slack_ns",
}

_TINY = ("--size", "tiny", "--steps", "2")
_DRY = ("--nodes", "2", "--gpus", "4")
SCENARIOS: dict[str, tuple[str, ...]] = {
    "run, the race": ("run", *_TINY, "--fix", "none"),
    "run, an edit": ("run", *_TINY, "--edit-after", "1"),
    "run, nothing persists": ("run", *_TINY, "--fix", "event", "--persistence", "0", "--slow", "stream:compute=20"),
    "run, Falcon, quantized": ("run", *_TINY, "--model", "falcon", "--fix", "none", "--qwz"),
    "run, own engine": ("run", *_TINY, "--sharding", "IIG", "--without", "gather-before-use"),
    "compare": ("compare", *_TINY, "--fixes", "none,device-sync"),
    "fuzz": ("fuzz", "hpz", "--examples", "30", "--random", "7", "--workers", "1"),
    "dry, hpZ": ("dry", *_DRY, "--hpz", "4", "--fix", "none"),
    "dry, PaRO": ("dry", *_DRY, "--sharding", "PaRO-IIG", "--accumulation", "2"),
    "check": ("check", "--name", "check", "program.py"),
}
_PROGRAM = """\
import torch

side = torch.cuda.Stream()
weights = torch.ones(64, 64, device="cuda")
side.wait_stream(torch.cuda.default_stream())
for step in range(3):
    update = weights @ weights
    with torch.cuda.stream(side):
        total = update.sum()
    print("step", step, total.item())
    weights = weights + update / total
"""
_LEFT_OUT_FILES = {".html", ".md", ".trace"}  # a trace is decoded
_LEFT_OUT_FOLDERS = {"logs", ".hypothesis", "examples"}
_LEFT_OUT_FIELDS = {"host_s", "digest"}
_DONE = "done.json"
_OWN = {"file": "own code"}
_ENDS = (_OWN, _OWN["file"])  # as a frame, and as the text of one
_NONE = "nothing"
_LONGEST = 200  # characters of a value that differs


@dataclass(frozen=True)
class Checkout:
    """A working tree of the project. ``revision`` is empty where files differ from the commit."""

    path: Path
    revision: str
    packages: frozenset[str]

    @classmethod
    def at(cls, path: Path) -> Checkout:
        git = ("git", "-C", str(path))
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        return cls(path, "" if changed else head, frozenset(file.parent.name for file in path.glob("*/__init__.py")))

    def python(self, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run ``python WORDS`` in ``folder``, importing the project from this checkout."""
        environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
        environment |= {"PYTHONPATH": str(self.path)}
        command = [sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)

    def run(self, name: str, folder: Path) -> Path:
        """Run the scenario in ``folder``, unless an earlier call for the same commit has; return the folder."""
        asked = {"words": list(SCENARIOS[name]), "program": _PROGRAM, "revision": self.revision}
        try:
            kept = json.loads((folder / _DONE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            kept = {}
        if self.revision and kept.get("asked") == asked:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "program.py").write_text(_PROGRAM, encoding="utf-8")
        command, *options = SCENARIOS[name]
        named = [] if command in ("check", "fuzz") else ["--name", "it"]
        done = self.python("-m", "streamrace", command, *named, "--runs", "runs", *options, folder=folder)
        if done.returncode not in (0, 1):
            raise click.ClickException(f"{name}: failed in {self.path}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        (folder / _DONE).write_text(json.dumps({"asked": asked, "status": done.returncode}), encoding="utf-8")
        return folder


# Runs in the checkout that wrote the traces: a line of JSON for each record, with its stack in place of a number.
_DECODE = """
import json, sys
from pathlib import Path
try:
    from streamrace.trace.files import TraceReader
except ModuleNotFoundError:
    from streamrace.device.trace import TraceReader

for name in sys.argv[1:]:
    stacks = {}
    with open(name + ".decoded", "w", encoding="utf-8") as written:
        for record in TraceReader(Path(name)).read():
            fields = record._asdict()
            kind = type(record).__name__
            if kind == "Stack":
                stacks[record.id] = [frame._asdict() for frame in record.frames]
                continue
            if "stack" in fields:
                fields["stack"] = stacks.get(fields["stack"], fields["stack"])
            written.write(json.dumps([kind, fields], default=bytes.hex) + chr(10))
print(sys.modules[TraceReader.__module__].__file__)
"""
_FRAME = re.compile(r'"file": "([^"]+)", "line": (\d+)')
_PLACE = re.compile(r"(?P<file>[\w./-]+\.py):(?P<line>\d+)(?: [\w.<>]+)?")


class Left:
    """Files that a command left in ``folder``, in a form in which two versions can be compared."""

    def __init__(self, checkout: Checkout, folder: Path, renamed: Mapping[str, str]) -> None:
        self._checkout, self._folder, self._renamed = checkout, folder, renamed
        traces = [str(file) for file in sorted((folder / "runs").rglob("*.trace"))]
        done = checkout.python("-c", _DECODE, *traces, folder=folder)
        if done.returncode:
            raise click.ClickException(f"cannot decode the traces in {folder}:\n{done.stderr[-2000:]}")
        if not Path(done.stdout.strip()).is_relative_to(checkout.path):
            raise click.ClickException(f"{checkout.path} was not used, but {done.stdout.strip()}")
        self._own_places = self._of_traces(Path(trace + ".decoded") for trace in traces)
        self.files = dict(self._named())

    def _named(self) -> Iterator[tuple[str, Path]]:
        yield "exit status", self._folder / _DONE
        recordings: dict[str, str] = {}
        for file in sorted(path for path in (self._folder / "runs").rglob("*") if path.is_file()):
            *folders, name = file.relative_to(self._folder / "runs").parts
            if file.suffix in _LEFT_OUT_FILES or _LEFT_OUT_FOLDERS & set(folders):
                continue
            if folders[:1] == ["recordings"]:
                folders[1] = recordings.setdefault(folders[1], f"recording {len(recordings) + 1}")
            yield "/".join([*folders, self._renamed.get(name, name)]), file

    def _of_traces(self, decoded: Iterable[Path]) -> frozenset[str]:
        """Return the places in the project's own code, each as file name and line."""
        own: set[str] = set()
        foreign: set[str] = set()
        for file in decoded:
            for name, line in set(_FRAME.findall(self._anywhere(file.read_text(encoding="utf-8")))):
                (own if self._is_own(name) else foreign).add(f"{Path(name).name}:{line}")
        return frozenset(own - foreign)

    def values(self, name: str) -> Iterator[Any]:
        """Yield the values in a file: records of a trace, rows of a table, or a document as a whole."""
        file = self.files[name]
        if file.name == _DONE:
            yield json.loads(file.read_text(encoding="utf-8"))["status"]
        elif file.suffix == ".decoded":
            with file.open(encoding="utf-8") as lines:
                for line in lines:
                    kind, fields = self._read(line)
                    yield {"record": self._renamed.get(kind, kind), **fields}
        elif name.endswith(".json.gz"):
            yield self._read(gzip.decompress(file.read_bytes()).decode())
        elif file.suffix == ".json":
            yield self._read(file.read_text(encoding="utf-8"))
        elif file.suffix == ".csv":
            with file.open(encoding="utf-8", newline="") as lines:
                yield from (self._comparable(row) for row in csv.DictReader(lines))
        elif file.suffix == ".parquet":
            frame = pd.read_parquet(file)
            yield self._comparable({str(column): str(dtype) for column, dtype in frame.dtypes.items()})
            for row in frame.to_dict("records"):
                yield self._comparable({str(column): repr(value) for column, value in row.items()})
        else:
            yield file.read_bytes().hex()

    def _read(self, text: str) -> Any:
        """Parse JSON; other than whole numbers stay as written, to the last digit."""
        return self._comparable(json.loads(self._anywhere(text), parse_float=_number, parse_constant=str))

    def _anywhere(self, text: str) -> str:
        return text.replace(str(self._folder), "FOLDER").replace(str(self._checkout.path), "CHECKOUT")

    def _is_own(self, file: str) -> bool:
        return file.removeprefix("CHECKOUT/").partition("/")[0] in self._checkout.packages | {"multiprocessing"}

    def _comparable(self, value: Any) -> Any:
        """Return the value with today's names, and without the parts left out."""
        if isinstance(value, dict):
            if isinstance(file := value.get("file"), str) and self._is_own(file):
                return _OWN
            kept = ((name, one) for name, one in value.items() if name not in _LEFT_OUT_FIELDS and one is not None)
            return {self._renamed.get(name, name): self._comparable(one) for name, one in kept}
        if isinstance(value, list):
            found = [self._comparable(one) for one in value]
            while found and found[-1] in _ENDS:
                found.pop()
            return [one for at, one in enumerate(found) if one is not _OWN or found[at - 1 : at] != [_OWN]]
        return _PLACE.sub(self._place, value) if isinstance(value, str) and ".py:" in value else value

    def _place(self, found: re.Match[str]) -> str:
        own = self._is_own(found["file"]) or f"{found['file']}:{found['line']}" in self._own_places
        return _OWN["file"] if own else found[0]


def _number(text: str) -> int | str:
    return int(float(text)) if float(text).is_integer() else text


def difference(old: Any, new: Any, where: str = "") -> str:
    """Return the first difference and its place; empty where there is none."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            if found := difference(old.get(name, _NONE), new.get(name, _NONE), f"{where}.{name}" if where else name):
                return found
        return ""
    if isinstance(old, list) and isinstance(new, list):
        pairs = enumerate(zip_longest(old, new, fillvalue=_NONE))
        return next((found for at, (one, other) in pairs if (found := difference(one, other, f"{where}[{at}]"))), "")
    if type(old) is type(new) and old == new:
        return ""
    told = (_NONE if one is _NONE else json.dumps(one)[:_LONGEST] for one in (old, new))
    return f"{where}: {' -> '.join(told)}"


def compared(old: Left, new: Left) -> str:
    """Return the first difference between the files of two versions; empty where there is none."""
    for name in {**old.files, **new.files}:
        if name not in old.files or name not in new.files:
            return f"{name}: only the {'new' if name in new.files else 'old'} version writes it"
        for at, (one, other) in enumerate(zip_longest(old.values(name), new.values(name), fillvalue=_NONE)):
            if one != other and (found := difference(one, other)):
                return f"{name}, value {at + 1}, {found}"
    return ""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("old", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.argument(
    "new",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    default=Path(__file__).parents[1],
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    metavar="FOLDER",
    help="Keep the results of OLD there, for the next comparison with the same commit.",
)
@click.option("--only", multiple=True, type=click.Choice(list(SCENARIOS)), help="This scenario alone.")
def main(old: Path, new: Path, keep: Path | None, only: tuple[str, ...]) -> None:
    """Do the checkouts OLD and NEW (default: this one) find the same in ten scenarios?"""
    console = Console()
    before, after = Checkout.at(old), Checkout.at(new)
    differing = 0
    spent = [0.0, 0.0]
    with tempfile.TemporaryDirectory() as made:
        folders = (keep or Path(made) / "old", Path(made) / "new")
        for name in only or SCENARIOS:
            left = []
            for at, (checkout, renamed) in enumerate(((before, RENAMED), (after, {}))):
                with console.status(f"{name}, {('old', 'new')[at]}"):
                    began = time.monotonic()
                    left.append(Left(checkout, checkout.run(name, folders[at] / name.replace(", ", "-")), renamed))
                    spent[at] += time.monotonic() - began
            found = compared(*left)
            differing += bool(found)
            console.print(f"{name}: {escape(found) or 'equal'}", highlight=False, soft_wrap=True)
    for checkout, seconds in zip((before, after), spent, strict=True):
        console.print(f"{checkout.path}: {seconds:.0f} s", highlight=False, soft_wrap=True)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
