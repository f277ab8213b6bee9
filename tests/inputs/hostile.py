"""What may stand in a file that somebody else made: files of every kind, damaged, by bytes and by what they say."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import parquet

from streamrace.trace.records import Seal
from streamrace.trace.schema import CODES

ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b\u202e"  # clears the screen, names the window, turns text around
NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    2,
    10**9,
    2**31,
    2**53 + 1,
    2**63,
    2**64,
    10**400,
    0.5,
    1e-300,
    1e15,
    1e300,
    -1e300,
)
TEXTS = (
    "",
    "x",
    ESCAPES,
    "\ud800",
    "[/]",
    "[red]",
    "%s{}\\",
    "a" * 5_000,
    "../../elsewhere/victim",
    "/",
    "nan",
    "\n\n",
    "auto",
)
TREES: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"": {}}, [None], {"step": 1}, {"type": []})


def deep(levels: int) -> Any:
    made: Any = []
    for _ in range(levels):
        made = [made]
    return made


def replacements() -> st.SearchStrategy[Any]:
    return st.sampled_from((*NUMBERS, *TEXTS, *TREES, deep(70), deep(700)))


RAW = (
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "9" * 6_000,
    "[" * 5_000,
    "{" * 5_000,
    '"',
    "nul",
    '"\\ud800"',
    "1.",
    "\x00",
    "",
)
MARK = "\x02here\x02"


def damaged_bytes(draw: Callable[..., Any], raw: bytes) -> bytes:
    """Cut off, a byte changed, something put in, or something else altogether."""
    at = draw(st.integers(0, max(len(raw) - 1, 0)))
    how = draw(st.sampled_from(("cut", "changed", "put in", "foreign", "twice")))
    if how == "cut":
        return raw[:at]
    if how == "changed":
        return raw[:at] + bytes([draw(st.integers(0, 255))]) + raw[at + 1 :]
    if how == "put in":
        return (
            raw[:at]
            + draw(st.sampled_from((b"\x00", b"\xff\xfe", b"\x1b[2J", b"\n", b"[" * 3_000, b"1e999")))
            + raw[at:]
        )
    if how == "foreign":
        return bytes(
            draw(
                st.sampled_from((b"", b"\x80\x04\x95.", b"PK\x03\x04", b"PAR1", b"\x1f\x8b\x08\x00", b"\xef\xbb\xbf{}"))
            )
        )
    return raw + raw


def damaged_json(draw: Callable[..., Any], raw: bytes) -> bytes:
    """One place in the tree holds something else, or is not there."""
    tree = json.loads(raw)
    places = _places(tree)
    above, key = draw(st.sampled_from(places)) if places else (None, None)
    how = draw(st.sampled_from(("another", "raw", "gone", "twice", "root")))
    if above is None or how == "root":
        return json.dumps(draw(replacements())).encode()
    if how == "gone":
        del above[key]
    elif how == "twice" and isinstance(above, list):
        above.append(above[key])
    elif how == "raw":
        above[key] = MARK
        return json.dumps(tree).replace(json.dumps(MARK), draw(st.sampled_from(RAW))).encode("utf-8", "surrogatepass")
    else:
        above[key] = draw(replacements())
    return json.dumps(tree).encode()


def damaged_pickle(draw: Callable[..., Any], raw: bytes) -> bytes:
    """A pickle of other values, or of other opcodes."""
    try:
        return pickle.dumps(json.loads(damaged_json(draw, json.dumps(pickle.loads(raw)).encode())), 2)
    except (ValueError, RecursionError):
        return damaged_bytes(draw, raw)


def damaged_lines(draw: Callable[..., Any], raw: bytes) -> bytes:
    """JSON, line by line."""
    lines = raw.splitlines(keepends=True)
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = damaged_json(draw, lines[at]) + b"\n"
    return b"".join(lines)


def damaged_csv(draw: Callable[..., Any], raw: bytes) -> bytes:
    """A cell, or the name of a column, holds something else; or a column is gone, or there twice."""
    rows = list(csv.reader(io.StringIO(raw.decode())))
    row = draw(st.integers(0, len(rows) - 1))
    column = draw(st.integers(0, len(rows[row]) - 1))
    how = draw(st.sampled_from(("another", "another", "another", "no column", "twice", "no row", "quote")))
    if how == "another":
        value = draw(st.sampled_from((*map(str, NUMBERS), *TEXTS, "inf", "-inf", "1e999", "True", "9" * 5_000)))
        rows[row][column] = value
    elif how == "no column":
        rows = [[cell for at, cell in enumerate(one) if at != column] for one in rows]
    elif how == "twice":
        rows = [[*one, one[column] if column < len(one) else ""] for one in rows]
    elif how == "no row":
        rows = rows[:1]
    else:
        rows[row][column] = '"'
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def damaged_toml(draw: Callable[..., Any], raw: bytes) -> bytes:
    """An entry holds something else, or there is one more."""
    lines = raw.decode().splitlines()
    entries = [at for at, line in enumerate(lines) if re.match(r"\w+ = ", line)]
    at = draw(st.sampled_from(entries))
    values = (
        "0",
        "-1",
        "1e300",
        "1e-300",
        "inf",
        "nan",
        "9" * 6_000,
        "1" + "0" * 400,
        '"x"',
        '""',
        "true",
        "[]",
        "{}",
        "[[[1]]]",
        "[" * 3_000,
        "1979-05-27T07:32:00Z",
        '"\\u001b[2J"',
        '"h100"',
        '{ within = "x" }',
        "{ nics = 9999999999 }",
        "1_0",
    )
    name = draw(st.sampled_from((lines[at].partition(" = ")[0], "network", "gpu", "unknown", '"\\u001b[2J"')))
    lines[at] = f"{name} = {draw(st.sampled_from(values))}"
    return "\n".join(lines).encode()


def damaged_parquet(draw: Callable[..., Any], raw: bytes) -> bytes:
    """A column has other values, another type, another name, or pandas is told something else of the table."""
    table = parquet.read_table(io.BytesIO(raw))
    rows, at = len(table), draw(st.integers(0, table.num_columns - 1))
    how = draw(st.sampled_from(("values", "values", "values", "name", "gone", "pandas", "empty")))
    if how == "values":
        values = draw(
            st.sampled_from(
                (
                    pa.nulls(rows),
                    pa.nulls(rows, pa.int64()),
                    pa.array([-1] * rows),
                    pa.array([2**62] * rows),
                    pa.array([2**40 + one for one in range(rows)]),
                    pa.array([1e300] * rows),
                    pa.array([float("nan")] * rows),
                    pa.array([ESCAPES] * rows),
                    pa.array([b"\xff"] * rows),
                    pa.array([[1]] * rows),
                    pa.array([{"a": 1}] * rows),
                    pa.array([2**64 - 1] * rows, pa.uint64()),
                    pa.array([True] * rows),
                    pa.array(["a" * 9_000] * rows),
                )
            )
        )
        table = table.set_column(at, table.column_names[at], values)
    elif how == "name":
        names = table.column_names
        names[at] = draw(st.sampled_from(("", ESCAPES, names[0])))
        table = table.rename_columns(names)
    elif how == "gone":
        table = table.remove_column(at)
    elif how == "empty":
        table = table.slice(0, 0)
    else:
        said = draw(
            st.sampled_from((b"{", b"[]", b"{}", b"\xff", b"[" * 5_000, b'{"index_columns":[null],"columns":[null]}'))
        )
        table = table.replace_schema_metadata({b"pandas": said})
    made = io.BytesIO()
    parquet.write_table(table, made)
    return made.getvalue()


def damaged_trace(draw: Callable[..., Any], raw: bytes) -> bytes:
    """A record has another field, or is gone, or comes twice. Sealed again, as whoever changes one on purpose does."""
    rows = list(msgpack.Unpacker(io.BytesIO(raw), use_list=True, strict_map_key=False))
    if rows and rows[-1][0] == CODES[Seal]:
        rows.pop()
    at = draw(st.integers(0, len(rows) - 1))
    how = draw(st.sampled_from(("field", "field", "field", "gone", "twice", "short", "long", "kind")))
    if how == "field":
        values = (
            None,
            True,
            -1,
            0,
            1,
            2**40,
            2**63 - 1,
            1e300,
            "",
            ESCAPES,
            b"\xff",
            [],
            {},
            [[1, 2]],
            "torch.ops.aten.add",
            deep(90),
        )
        rows[at][draw(st.integers(0, len(rows[at]) - 1))] = draw(st.sampled_from(values))
    elif how == "gone":
        del rows[at]
    elif how == "twice":
        rows.insert(at, rows[at])
    elif how == "short":
        rows[at].pop()
    elif how == "long":
        rows[at].append(0)
    else:
        rows[at][0] = draw(st.integers(0, len(CODES)))
    body = b"".join(map(msgpack.packb, rows))
    return body + bytes(msgpack.packb((CODES[Seal], hashlib.sha256(body).digest())))


Damage = Callable[[Callable[..., Any], bytes], bytes]
BY_ENDING: dict[str, Damage] = {
    ".json": damaged_json,
    ".jsonl": damaged_lines,
    ".pickle": damaged_pickle,
    ".csv": damaged_csv,
    ".toml": damaged_toml,
    ".parquet": damaged_parquet,
    ".trace": damaged_trace,
}


def damage(draw: Callable[..., Any], file: Path) -> None:
    """Damage one file; its kind is said by its ending. Rarely it is another thing altogether."""
    raw = file.read_bytes()
    zipped = file.suffix == ".gz"
    kind = Path(file.stem).suffix if zipped else file.suffix
    how = draw(st.sampled_from(("said", "said", "said", "said", "bytes", "gone", "folder", "link", "nowhere")))
    if how == "said":
        made = BY_ENDING[kind](draw, gzip.decompress(raw) if zipped else raw)
        file.write_bytes(gzip.compress(made) if zipped else made)
        return
    if how == "bytes":
        file.write_bytes(damaged_bytes(draw, raw))
        return
    file.unlink()
    if how == "folder":
        file.mkdir()
    elif how == "link":
        file.symlink_to("../elsewhere/victim")
    elif how == "nowhere":
        file.symlink_to("nowhere")


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else list(range(len(one))) if isinstance(one, list) else []
        found += [(one, key) for key in keys]
        waiting += [one[key] for key in keys]
    return found
