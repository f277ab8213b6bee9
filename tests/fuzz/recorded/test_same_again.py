"""A token means the same bits: in another process, with another hash seed, whatever was executed before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamrace.fuzz.subject import Subject
from streamrace.fuzz.witness import witness
from streamrace.replay.tokens import Token

_PROCESSES = 2

_EXECUTE = """
import sys
from hashlib import sha256
from pathlib import Path
from random import Random
from streamrace.fuzz.strategy import draw_timing
from streamrace.fuzz.subject import Subject
from streamrace.replay.tokens import Token

subject, seed = Subject.load(Path(sys.argv[1])), int(sys.argv[2])
tokens, random = [Token.parse(text) for text in sys.argv[4:]] * int(sys.argv[3]), Random(seed)
random.shuffle(tokens)  # each as often as the others, in an order of this process's own
for token in tokens:
    if random.random() < 0.2:
        subject.run(draw_timing(random, subject))  # something else in between
    outcome = subject.replayer.run(subject.timing(token.deviations))
    values = repr((outcome.checksums, sorted(outcome.losses.items()), sorted(outcome.bad.items())))
    print(token, sha256(values.encode()).hexdigest())
"""


@pytest.mark.parametrize("times", [2, pytest.param(170, marks=pytest.mark.wide)])
def test_always_the_same_bits(times: int, recorded: Callable[[str], Path], subject: Callable[[str], Subject]) -> None:
    one = subject("none")
    tokens = [str(Token("hpz", {}, witness(one, race).deviations)) for race in one.races]
    tokens.append("t1,hpz,x8:stream:compute,jitter:40:7")
    assert all(len(token) <= 120 for token in tokens)
    command = [sys.executable, "-c", _EXECUTE, str(recorded("none"))]
    running = [
        subprocess.Popen(
            [*command, str(seed), str(times), *tokens],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(1, _PROCESSES + 1)
    ]
    lines = [line for process in running for line in process.communicate(timeout=200)[0].splitlines()]
    assert len(lines) == _PROCESSES * times * len(tokens)
    assert len(set(lines)) == len(tokens)
    assert len({line.split()[1] for line in lines}) == len(tokens)  # and each its own
