"""A profile as a file that :func:`simgpu.hardware.load_profile` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields

from simgpu.hardware import Profile


def written(profile: Profile, *, origin: str, notes: Mapping[str, str]) -> str:
    """As TOML. ``origin``: a sentence, a comment at its beginning; ``notes``: behind the fields that they are about."""
    lines = [f"# {origin}"]
    for item in fields(Profile):
        value = getattr(profile, item.name)
        if item.name == "name" or value is None:
            continue
        # A text of JSON is one of TOML too, but for what is beyond the 16-bit plane: that is left as it is.
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else _figure(value)
        note = notes.get(item.name)
        lines.append(f"{item.name} = {text}" + (f"  # {note}" if note else ""))
    return "\n".join(lines) + "\n"


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}" if value != int(value) else f"{value:.1f}"
