"""The two kinds of tokens that a test's report may give, and what to say to who mixes them up."""

from __future__ import annotations

from contextlib import suppress

from fuzz.testing.device import CUDA, FLAG, INI
from repro.replay.tokens import Token
from repro.tokens import TokenError
from simgpu.timing import Timing


def of_accelerator(text: str) -> Token:
    """A token of a test on the simulated accelerator. Raises :class:`ValueError` with one sentence."""
    try:
        token = Token.parse(text)
    except TokenError as error:
        with suppress(TokenError):
            Timing.parse(text)
            raise ValueError(
                f"this token is of a test on the simulated GPU: add {FLAG} {CUDA}, or {INI} = {CUDA} to the ini file"
            ) from None
        raise ValueError(str(error)) from None
    call = token.options.get("call", "1")
    if token.scenario != "test" or "name" not in token.options or not call.isdecimal():
        raise ValueError(
            f"this token is of scenario {token.scenario!r}, not of a test: it is for 'python -m repro replay'"
        )
    return token


def of_gpu(text: str) -> Timing:
    """A token of a test on the simulated GPU. Raises :class:`ValueError` with one sentence."""
    try:
        return Timing.parse(text)
    except TokenError as error:
        try:
            of_accelerator(text)
        except ValueError:
            raise ValueError(str(error)) from None
    raise ValueError(
        f"this token is of a test on the simulated accelerator: leave out {FLAG}, and {INI} in the ini file"
    )
