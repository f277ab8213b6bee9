"""How soon a search finds a timing that goes wrong."""

from __future__ import annotations

from itertools import islice

from streamrace.fuzz.search import Search
from streamrace.fuzz.subject import Subject


def first_divergence(search: Search, subject: Subject, seed: int, most: int) -> int | None:
    """How many executions the first divergence takes; None: more than ``most``."""
    found = enumerate(islice(search.timings(subject, seed), most), 1)
    return next((number for number, one in found if one.verdict.diverged), None)
