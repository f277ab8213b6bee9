"""Runs the programs of ``tests/device/corpus.py`` and of the textbook; prints what they leave. Arguments: left out."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "device"))

from corpus import CORPUS

from streamrace.scenarios.textbook import TEXTBOOK


class Watched:
    """A device for programs of the textbook: prints what the simulated device would probe."""

    def name_stream(self, stream: torch.cuda.Stream, name: str) -> None:
        pass

    def probe(self, kind: str, name: str, value: torch.Tensor, look: object) -> None:
        torch.cuda.synchronize()
        print(" ", kind, name, value.cpu().tolist()[:3] if value.dim() else value.item())


def main() -> None:
    for one in CORPUS:
        if one.name in sys.argv[1:]:
            continue
        try:
            one.run()
            said = ""
        except Exception as error:
            said = f" {type(error).__name__}"
        torch.cuda.synchronize()
        print(one.name + said)
    for name, pair in TEXTBOOK.items():
        for kind, run in (("racy", pair.program), ("fixed", pair.fixed)):
            print(name, kind)
            run(Watched())  # type: ignore[arg-type] - it has the two methods that programs call


main()
