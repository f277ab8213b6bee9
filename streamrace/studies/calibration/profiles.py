"""Writes a profile to a file that :func:`streamrace.device.hardware.load_profile` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass

from streamrace.device.hardware import Profile


def written(profile: Profile, *, origin: str, notes: Mapping[str, str]) -> str:
    """Return TOML. ``origin``: a sentence, the comment at the top; ``notes``: comments on fields, by name."""
    lines, tables = [f"# {origin}"], []
    for item in fields(Profile):
        value = getattr(profile, item.name)
        if item.name == "name" or value is None:
            continue
        if is_dataclass(value) and not isinstance(value, type):
            tables += ["", f"[{item.name}]"]
            tables += [f"{name} = {_text(figure)}" for name, figure in asdict(value).items() if figure is not None]
            continue
        note = notes.get(item.name)
        lines.append(f"{item.name} = {_text(value)}" + (f"  # {note}" if note else ""))
    return "\n".join([*lines, *tables]) + "\n"


def _text(value: str | bool | float) -> str:
    """Write a value as TOML: JSON's strings and booleans are valid TOML. Fitted figures have at most six digits."""
    if isinstance(value, (str, bool, int)):
        return json.dumps(value)
    return f"{value:.1f}" if value == int(value) else f"{value:.6g}"
