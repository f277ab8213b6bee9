"""Provides the parts of Triton that libraries need to be imported. A launch of a kernel is refused by its name.

``import triton`` yields this module unless Triton is installed and its kernels can run (:mod:`.presence`). Checks for
Triton (``find_spec``, the distribution's version) then report that it is missing.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from streamrace.device.refusals import refusal
from streamrace.device.triton import presence

VERSION = "3.6.0"
"""The release of Triton from which the names are."""


def spec(name: str) -> ModuleSpec:
    """Return the spec by which a module of that name is imported."""
    return ModuleSpec(name, _Loader(), is_package=True)


def hide() -> None:
    """Hide Triton from checks that do not import it, as long as its kernels cannot run."""
    find: Callable[..., ModuleSpec | None] = importlib.util.find_spec
    named: Callable[..., Any] = importlib.metadata.Distribution.from_name

    @functools.wraps(find)
    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if presence.is_of(name) and not presence.usable() else find(name, package)

    def from_name(name: str) -> Any:
        if presence.is_distribution(name) and not presence.usable():
            raise importlib.metadata.PackageNotFoundError(name)
        return named(name)

    importlib.util.find_spec = find_spec
    setattr(importlib.metadata.Distribution, "from_name", staticmethod(from_name))  # noqa: B010


class Kernel:
    """A kernel as it is defined. Any launch of it raises RuntimeError."""

    def __init__(self, function: Any, *_: Any, **__: Any) -> None:
        self.fn = function
        self.cache: dict[Any, Any] = {}  # of an autotuner: DeepSpeed up to 0.13.5 reads it when the program ends
        functools.update_wrapper(self, getattr(function, "fn", function), updated=())

    def _launch(self, *_: Any, **__: Any) -> Any:
        return _refuse(f"the Triton kernel '{getattr(self, '__name__', '?')}'")

    __call__ = run = warmup = preload = _launch

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return self._launch


class Configuration:
    """Stands for ``triton.Config``: a tuning configuration, stored as given."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, **more: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages
        self.__dict__.update(more)


class Constant:
    """Stands for ``triton.language.constexpr``: a value that is known when a kernel is compiled."""

    def __init__(self, value: Any) -> None:
        self.value = getattr(value, "value", value)


class _Name:
    """Stands for any other name: it can be passed on and has attributes, but a call raises RuntimeError."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __repr__(self) -> str:
        return self.__name__

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self.__name__}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _refuse(self.__name__)

    def __getitem__(self, _: Any) -> _Name:
        return self


def _refuse(subject: str) -> NoReturn:
    refusal(subject, f"{presence.advice()}, or use the code path without Triton")()


def _decorator(*args: Any, **_: Any) -> Any:
    """Decorate by ``@jit`` or ``@jit(...)``."""
    return Kernel(args[0]) if args and callable(args[0]) and not isinstance(args[0], _Name) else Kernel


def _as_it_is(*args: Any, **_: Any) -> Any:
    return args[0] if args and callable(args[0]) else lambda function: function


def _ceiling(value: int, by: int) -> int:
    return -(-value // by)


def _power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length() if value > 0 else 0


_KNOWN: dict[str, Any] = {
    "jit": _decorator,
    "autotune": lambda *_, **__: Kernel,
    "heuristics": lambda *_, **__: Kernel,
    "constexpr_function": _as_it_is,
    "JITFunction": Kernel,
    "Autotuner": type("Autotuner", (Kernel,), {}),
    "Heuristics": type("Heuristics", (Kernel,), {}),
    "KernelInterface": type("KernelInterface", (), {"__class_getitem__": classmethod(lambda cls, _: cls)}),
    "Config": Configuration,
    "constexpr": Constant,
    "cdiv": _ceiling,
    "next_power_of_2": _power_of_2,
    "set_allocator": lambda _: None,
}


class _Loader(Loader):
    def exec_module(self, module: ModuleType) -> None:
        @functools.cache
        def name(attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(f"module '{module.__name__}' has no attribute '{attribute}'")
            if attribute in _KNOWN:
                return _KNOWN[attribute]
            if attribute[0].isupper():  # a class to derive from, or an exception to catch
                return type(attribute, (Exception,), {"__module__": module.__name__})
            if f"{module.__name__}.{attribute}" in _MODULES:
                return importlib.import_module(f"{module.__name__}.{attribute}")
            return _Name(f"{module.__name__}.{attribute}")

        module.__getattr__ = name  # type: ignore[method-assign]
        module.__dict__["__version__"] = VERSION


_MODULES = ("triton.language", "triton.language.extra", "triton.language.math", "triton.runtime", "triton.compiler",
            "triton.testing", "triton.tools", "triton.backends")  # fmt: skip
