"""``story.py``, a fork of a process with a simulated GPU: calls the function of a test's file that its standard input
names (see conftest.py).
"""

from __future__ import annotations

import base64
import importlib.util
import os
import pickle
import sys
import traceback

status = 1
try:
    path, function, arguments = pickle.loads(base64.b64decode(sys.stdin.read()))
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("story", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["story"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, function)(**arguments)
    status = 0
except BaseException:
    traceback.print_exc()
finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # not as a program ends: the device may be in any state
