"""Sets the device on which a test's body creates tensors by default. No report shows this file's frames."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils._device import DeviceContext


class Default(DeviceContext):
    """The default device of a test's body, but not of torch's data loaders: they create batches on the host.

    With ``torch.set_default_device`` itself a loader that shuffles fails, on hardware too.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if caller.startswith("torch.utils.data"):
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
