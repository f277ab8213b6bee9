"""Restores the code before DeepSpeed 0.13.5: nothing orders the copy."""

from __future__ import annotations

from streamrace.frameworks.deepspeed.fixes.ordering import Ordering


class Nothing(Ordering):
    what = "nothing, as before 0.13.5"
