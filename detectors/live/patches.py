"""Adds listeners to a function that offers no hook: called unchanged, with listeners before and after.

Several watches may listen to one function; when the last listener is removed, the function is restored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple


class Listener(NamedTuple):
    """Two callbacks: ``before`` gets the function's arguments; ``after`` its result, then the arguments."""

    before: Callable[..., None] | None = None
    after: Callable[..., None] | None = None


class _Patch:
    """One patched function of one class, or of one object."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.listeners: list[Listener] = []
        self.own = name in vars(owner)
        self.original = vars(owner)[name] if self.own else getattr(owner, name)
        function, listeners = getattr(owner, name), self.listeners

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            present = list(listeners)
            for listener in present:
                if listener.before is not None:
                    listener.before(*args, **kwargs)
            result = function(*args, **kwargs)
            for listener in present:
                if listener.after is not None:
                    listener.after(result, *args, **kwargs)
            return result

        setattr(owner, name, call)

    def undo(self) -> None:
        if self.own:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)


_patches: dict[tuple[int, str], _Patch] = {}


def listen(
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> Callable[[], None]:
    """Listen to ``owner.name``: a class's or a module's function (with its ``self``), or one object's (without).

    Return the function that ends listening.
    """
    key = (id(owner), name)
    patch = _patches.get(key)
    if patch is None:
        patch = _patches[key] = _Patch(owner, name)
    listener = Listener(before, after)
    patch.listeners.append(listener)

    def end() -> None:
        if listener in patch.listeners:
            patch.listeners.remove(listener)
        if not patch.listeners and _patches.get(key) is patch:
            del _patches[key]
            patch.undo()

    return end
