"""A token means the same bits: in another process, with another hash seed, whatever was executed before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fuzz.subject import Subject
from fuzz.witness import witness
from repro.replay.record import record
from repro.replay.tokens import Token
from scenarios.textbook import TEXTBOOK

_PROCESSES, _TIMES = 2, 500

_EXECUTE = """
import sys
from hashlib import sha256
from pathlib import Path
from random import Random
from fuzz.strategy import draw_timing
from fuzz.subject import Subject
from repro.replay.record import record
from repro.replay.tokens import Token
from scenarios.textbook import TEXTBOOK

seed, random = int(sys.argv[2]), Random(int(sys.argv[2]))
subjects = {"hpz": Subject.load(Path(sys.argv[1])), "torn": Subject(record(TEXTBOOK["torn-snapshot"].program))}
tokens = [Token.parse(text) for text in sys.argv[4:]]
for turn in range(int(sys.argv[3])):
    # A quarter of them are DeepSpeed's, which take forty times as long.
    random.shuffle(tokens)
    tokens.sort(key=lambda token: (token.scenario == "hpz") != (turn % 4 == 0))
    subject = subjects[tokens[0].scenario]
    if random.random() < 0.2:
        subject.replayer.run(draw_timing(random, subject))  # something else in between
    outcome = subject.replayer.run(tokens[0].deviations)
    values = repr((outcome.checksums, sorted(outcome.losses.items()), sorted(outcome.bad.items())))
    print(tokens[0], sha256(values.encode()).hexdigest())
"""


def test_a_thousand_times_the_same_bits(recorded: Callable[[str], Path], subject: Callable[[str], Subject]) -> None:
    one = subject("none")
    tokens = [str(Token("hpz", {}, witness(one, race).deviations)) for race in one.races]
    tokens.append("t1,hpz,x8:stream:compute,jitter:40:7")
    other = Subject(record(TEXTBOOK["torn-snapshot"].program))
    tokens += [str(Token("torn", {}, witness(other, race).deviations)) for race in other.races]
    tokens.append("t1,torn,jitter:800:3")
    tokens = list(dict.fromkeys(tokens))
    assert all(len(token) <= 120 for token in tokens)
    command = [sys.executable, "-c", _EXECUTE, str(recorded("none"))]
    running = [
        subprocess.Popen(
            [*command, str(seed), str(_TIMES), *tokens],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(1, _PROCESSES + 1)
    ]
    lines = [line for process in running for line in process.communicate(timeout=200)[0].splitlines()]
    assert len(lines) == _PROCESSES * _TIMES
    assert len(set(lines)) == len(tokens)
    assert len({line.split()[0] for line in lines}) == len(tokens)
