"""Seeds the random generators that a program uses without seeding, so that all its runs draw the same numbers.

Covers Python's ``random``, numpy, and torch's generators of the host and of the device. Seeds set by the program apply
from then on. Whether the program drew before is seen from the generator's state, which this module leaves alone; a
request for entropy (``torch.seed()``, ``numpy.random.default_rng()``) gets a number derived from the seed.
"""

from __future__ import annotations

import functools
import json
import os
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from streamrace.trace import wording

SEED = 3141592  # plus the rank. Unlikely in a program, so that a generator with this seed was not seeded
NAMES = ("random", "numpy.random", "torch", "torch.cuda")


class _Generator:
    """A generator that exists from the start, with our seed until the program sets another (``by_program``)."""

    def __init__(self, name: str, put: Callable[[int], object], state: Callable[[], Any]) -> None:
        self.name, self._put, self.state = name, put, state
        self.by_program = self.drawn = False
        self._fresh: object = None

    def seed(self, number: int) -> None:
        self._put(number)
        self._fresh = self.state()

    def look(self) -> None:
        """Note whether the program drew from the generator with our seed."""
        self.drawn |= not self.by_program and self.state() != self._fresh

    def changed(self) -> None:
        """Note that the program set a seed or a state; a return to our unused state does not count."""
        self.by_program = self.state() != self._fresh


class _OfTorch(_Generator):
    """Generators of torch, which know their seed, also one from a stored state, or one that was set unseen."""

    def __init__(self, name: str, every: Callable[[], Sequence[Any]], moved: Callable[[Any], object]) -> None:
        self._number, self._generators, self._begin = 0, [*every()], list[object]()

        def put(number: int) -> None:
            self._number, self._generators = number, [*every()]  # a rank may see more devices by now
            for generator in self._generators:
                generator.manual_seed(number)
            self._begin = [moved(generator) for generator in self._generators]

        super().__init__(name, put, lambda: [moved(generator) for generator in self._generators])

    def look(self) -> None:
        each = zip(self._generators, self._begin, self.state(), strict=True)
        self.drawn |= any(generator.initial_seed() == self._number and now != begin for generator, begin, now in each)
        self.changed()

    def changed(self) -> None:
        self.by_program = any(generator.initial_seed() != self._number for generator in self._generators)


_all: dict[str, _Generator] = {}
_entropy = random.Random(SEED)
_running = [False]  # True: the program has begun


def begin() -> None:
    """Seed all generators. To be called once per process, after importing torch and before the program begins."""
    import numpy as np
    import torch

    torch_: Any = torch

    def numpys() -> str:
        return json.dumps(np.random.get_state(legacy=False), default=np.ndarray.tolist)

    def devices() -> list[Any]:
        return [torch_.ops.simgpu.default_generator(index) for index in range(torch_.cuda.device_count())]

    def offset(generator: Any) -> int:
        return int(struct.unpack("<QQ", generator.get_state().numpy().tobytes())[1])

    generators = (
        _Generator("random", random.seed, random.getstate),
        _Generator("numpy.random", np.random.seed, numpys),
        _OfTorch("torch", lambda: [torch.default_generator], lambda generator: generator.get_state().numpy().tobytes()),
        _OfTorch("torch.cuda", devices, offset),
    )
    _all.update({generator.name: generator for generator in generators})
    for generator in generators:
        generator.seed(SEED)
    _forks(random.seed, random.setstate)
    plain = random.seed

    def seed(a: Any = None, version: int = 2) -> None:
        plain(_drawn("random") if a is None else a, version)

    def of_torch() -> int:
        torch_.manual_seed(number := _drawn("torch"))
        return number

    _attend(("random",), (random,), {"seed": seed, "setstate": None})
    _attend(("numpy.random",), (np.random,), {"seed": None, "set_state": None})
    _attend(
        ("torch", "torch.cuda"), (torch, torch.random), {"manual_seed": None, "seed": of_torch, "set_rng_state": None}
    )
    on_device: dict[str, Callable[..., Any] | None] = {
        "seed": lambda: torch_.cuda.manual_seed(_drawn("torch.cuda")),
        "seed_all": lambda: torch_.cuda.manual_seed_all(_drawn("torch.cuda")),
    }
    for name in ("manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all"):
        on_device[name] = None
    _attend(("torch.cuda",), (torch.cuda, torch.cuda.random), on_device)
    numpy_: Any = np.random.bit_generator
    numpy_.randbits = lambda bits: _drawn("numpy.random", bits)  # for all generators created without a seed


def _attend(names: Sequence[str], modules: Sequence[Any], functions: Mapping[str, Callable[..., Any] | None]) -> None:
    """Check these generators around each function that seeds them; call its replacement, if one is given."""
    for name, instead in functions.items():
        plain = getattr(modules[0], name)

        @functools.wraps(plain)
        def call(*arguments: Any, function: Callable[..., Any] = instead or plain, **named: Any) -> Any:
            for name in names:
                _all[name].look()
            result = function(*arguments, **named)
            for name in names:
                _all[name].changed()
            return result

        for module in modules:
            setattr(module, name, call)


def _forks(seed: Callable[[int], None], setstate: Callable[[Any], None]) -> None:
    """Replace the entropy that Python gives ``random`` in each fork. A rank's fork keeps the present state, since the
    program did not start it; a fork by the program gets a number derived from our seed.
    """
    state: list[Any] = []

    def before() -> None:
        state[:] = [_entropy.getrandbits(63) if _running[0] else 0, random.getstate()]

    def in_child() -> None:
        if _running[0]:
            seed(state[0])
            _entropy.seed(state[0])
        else:
            setstate(state[1])

    os.register_at_fork(before=before, after_in_child=in_child)


def _drawn(name: str, bits: int = 63) -> int:
    _all[name].drawn = True
    return _entropy.getrandbits(bits)


@contextmanager
def of_rank(rank: int, report: Path | None) -> Iterator[None]:
    """Run the program in the ``with`` block: each rank has another seed. ``report``: lists unseeded generators in use.

    Modules of the program that were imported earlier may have set seeds already.
    """
    if not _all:
        yield
        return
    for generator in _all.values():
        generator.look()
        if not generator.by_program:
            generator.seed(SEED + rank)
    _entropy.seed(SEED + rank)
    _running[0] = True
    try:
        yield
    finally:
        for generator in _all.values():
            generator.look()
        if report is not None and (drawn := [name for name, generator in _all.items() if generator.drawn]):
            with suppress(OSError), report.open("a", encoding="utf-8") as file:
                file.write("".join(f"{name}\n" for name in drawn))


def sentence(file: Path) -> str:
    """Return the sentence about the generators listed in ``file``, without a full stop; empty if there are none."""
    try:
        drawn = file.read_text(encoding="utf-8").split()
    except OSError:
        return ""
    names = [name for name in NAMES if name in drawn]
    libraries = wording.every(names)
    return f"The program draws from {libraries} without setting a seed: check set one for all its runs ({SEED} + rank)"
