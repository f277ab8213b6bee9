"""Names work as a person knows it: its kernel in short, the operator and the line of the program that launched it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from streamrace.kineto.file import KinetoTrace, args, positive
from streamrace.kineto.order import KinetoWork
from streamrace.trace.wording import cut

_LONGEST = 48  # characters
_FRAME = re.compile(r"(?!torch/|<built-in )(.+)\((\d+)\): .+", re.DOTALL)


def name(work: KinetoWork) -> str:
    """Return the collective's name, or the kernel's without namespaces, types and arguments."""
    collective, kernel = args(work.event).get("Collective name"), str(work.event.get("name", ""))
    if not isinstance(collective, str):
        bare = re.split(r"[<(]", kernel.replace("(anonymous namespace)", ""))[0]
        collective = kernel if kernel.startswith("Mem") else bare.split("::")[-1].removeprefix("void ")
    return cut(" ".join(collective.split()) or "a kernel", _LONGEST)


def places(trace: KinetoTrace, works: Iterable[KinetoWork]) -> Mapping[KinetoWork, str]:
    """Return the innermost operator and line outside of torch around each launch: "aten::add at train.py:7"."""
    found: dict[KinetoWork, dict[str, tuple[float, str]]] = {}
    threads: dict[str, list[tuple[float, dict[str, tuple[float, str]]]]] = {}
    for work in works:
        at = None if work.launch is None else positive(work.launch.get("ts"))
        if work.launch is not None and at is not None:
            threads.setdefault(str(work.launch.get("tid")), []).append((at, found.setdefault(work, {})))
    for event in trace.of("cpu_op", "python_function"):
        start, took, text = positive(event.get("ts")), positive(event.get("dur")), str(event.get("name"))
        frame = _FRAME.fullmatch(text)
        kind = "" if event.get("cat") == "cpu_op" else "at "
        if start is None or took is None or (kind and frame is None):
            continue
        said = kind + cut(f"{frame[1]}:{frame[2]}" if kind and frame else text, _LONGEST)
        for at, inner in threads.get(str(event.get("tid")), ()):
            if start <= at <= start + took and start >= inner.get(kind, (0.0, ""))[0]:
                inner[kind] = start, said
    return {work: " ".join(inner[kind][1] for kind in ("", "at ") if kind in inner) for work, inner in found.items()}
