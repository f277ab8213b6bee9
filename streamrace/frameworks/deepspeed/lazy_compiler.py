"""Postpones the execution of DeepSpeed's compiler backend until it is used.

Each engine on a GPU registers its passes there when it is created (``DeepSpeedEngine.__init__``,
``register_compile_pass``). That alone imports torch's inductor, half a second of processor time in each rank, for a
compiler that nobody has requested, and that the simulated GPU refuses (:mod:`.builders`). So registrations are kept,
and passed on when the module is executed: on the first access to any other name in it.
:class:`importlib.util.LazyLoader` is similar, but the registration itself would be the first use.
"""

from __future__ import annotations

import threading
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_REGISTER = "register_compile_pass"


class Postponed(Loader):
    """Loads a module that is executed by ``loader`` when it is used."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        registered: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def register(*args: Any, **kwargs: Any) -> None:
            registered.append((args, kwargs))

        def execute() -> None:
            del module.__dict__[_REGISTER]
            try:
                self._loader.exec_module(module)
            except BaseException:
                module.__dict__[_REGISTER] = register
                raise
            for args, kwargs in registered:
                getattr(module, _REGISTER)(*args, **kwargs)

        module.__dict__.update({_REGISTER: register, "_postponed": execute, "_executing": threading.RLock()})
        module.__class__ = _Unused


class _Unused(ModuleType):
    """A module that was not executed. It becomes a plain module on execution."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # looked up by Python itself during the import
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with self._executing:
            if isinstance(self, _Unused):  # else another thread has executed it
                execute = self._postponed
                self.__class__ = ModuleType  # type: ignore[assignment]
                try:
                    execute()
                except BaseException:
                    self.__class__ = _Unused
                    raise
        return getattr(self, name)
