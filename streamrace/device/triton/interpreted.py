"""Changes Triton's modules when a program imports them, see :mod:`streamrace.device.imports`."""

from __future__ import annotations

import dataclasses
import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

from streamrace.device import callsites
from streamrace.device.refusals import refusal

_PASSING = ("jit", "autotuner", "interpreter")  # modules whose frames only pass a launch on

_INTERPRETED = "kernels run by Triton's interpreter: use @triton.jit, without TRITON_INTERPRET=0"


def install(triton: ModuleType) -> None:
    """Have kernels run by Triton's interpreter as work of the simulated GPU."""
    from streamrace.device.triton import builder, driver, launching, loops, reducing

    callsites.PASSING.update(f"/triton/runtime/{name}.py" for name in _PASSING)
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    autotuner: Any = importlib.import_module("triton.runtime.autotuner")
    jit: Any = importlib.import_module("triton.runtime.jit")
    language: Any = importlib.import_module("triton.language")
    knobs: Any = importlib.import_module("triton.knobs")
    knobs.runtime.interpret = True  # also if the program changes the environment
    made = interpreter.interpreter_builder = builder.Builder()
    # Each sum of integers would be computed twice, for an assertion that holds in debugging alone.
    made.options = dataclasses.replace(made.options, sanitize_overflow=False)
    interpreter.interpreter_semantic = interpreter.TritonSemantic(made)
    interpreter.ReduceOps, interpreter.ScanOps = reducing.Reductions, reducing.Scans
    interpreter.InterpretedFunction.run = launching.run
    # Triton does this at each launch and at each call of a function, and it takes longer than a small kernel.
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": language, "core": language.core}))
    setattr(interpreter, loops.NAME, loops.kernel_range)
    interpreter.FunctionRewriter.ast_transformer = loops.LoopTransformer()
    language.range = language.core.range = loops.kernel_range
    scope = interpreter._LangPatchScope()
    interpreter._patch_lang = lambda _: scope
    for module in (language.extra.cuda, language.extra.cuda.libdevice):
        interpreter._patch_builtin(module, made, scope)
    autotuner.Autotuner._bench = _bench
    jit.JITFunction.run = refusal("this Triton kernel, compiled", _INTERPRETED)
    _set(triton, "compile", refusal("triton.compile", _INTERPRETED))
    importlib.import_module("triton.runtime").driver.set_active(driver.Driver())


def libdevice(module: ModuleType) -> None:
    """Replace the functions of ``triton.language.extra.libdevice``, which have no body, by those for CUDA."""
    cuda: Any = importlib.import_module("triton.language.extra.cuda.libdevice")
    for name in [name for name in vars(module) if not name.startswith("_") and callable(getattr(module, name))]:
        missing = refusal(f"libdevice's function '{name}'", "Triton's interpreter lacks it")
        _set(module, name, getattr(cuda, name, missing))


def gluon(module: ModuleType) -> None:
    """Refuse kernels of Gluon (``triton.experimental.gluon``), which name the hardware's registers and barriers."""
    kind: Any = getattr(module, "GluonJITFunction")  # noqa: B009

    def run(self: Any, *_: Any, **__: Any) -> None:
        refusal(
            f"the Gluon kernel '{self.fn.__name__}'", "it is written for one GPU's layouts: use its Triton version"
        )()

    kind.run = run


def _bench(_: Any, *__: Any, config: Any, **___: Any) -> list[float]:
    """Return equal times for all configurations, so that the first one is taken, and never one in clusters."""
    from streamrace.device.triton.driver import SECONDS

    return [float("inf")] * len(SECONDS) if (config.num_ctas or 1) > 1 else list(SECONDS)


def _set(module: ModuleType, name: str, value: Any) -> None:
    setattr(module, name, value)
