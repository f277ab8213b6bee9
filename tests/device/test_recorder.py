"""The recorder of a real GPU says what the simulated GPU's own trace says, of the same run."""

from __future__ import annotations

import torch
from beside import recorded, unpacked
from corpus import CORPUS
from judged import Story, story
from samples import apart


def pairs(told: Story) -> set[tuple[str, tuple[str, int], tuple[str, int]]]:
    """Each race by its kind and its two lines."""

    def line(access) -> tuple[str, int]:
        frame = next(iter(access.stack), None)
        return (frame.file, frame.line) if frame else ("", 0)

    kinds = {"read-write": "overlap", "write-read": "overlap", "write-write": "overlap"}
    return {(kinds.get(race.kind, race.kind), line(race.first), line(race.second)) for race in told.races}


def verdicts(name: str):
    program = next(one for one in CORPUS if one.name == name)
    theirs = Story()
    try:
        with story() as own, recorded(unpacked(theirs.records)):
            program.run()
        return pairs(own), pairs(theirs)
    except Exception as error:
        return repr(error)
    finally:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def test_the_pairs_of_the_corpus_are_the_devices() -> None:
    found = dict(apart(verdicts, [program.name for program in CORPUS]))
    wrong = {name: both for name, both in found.items() if isinstance(both, str) or both[0] != both[1]}
    for name, both in wrong.items(): print(name, both)
    assert wrong == {}
