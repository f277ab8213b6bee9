"""A script with which accelerate tests itself on ranks: ``SCRIPT``, a module of ``accelerate.test_utils.scripts``."""

from __future__ import annotations

import runpy
import sys

from shared import tell

script = sys.argv.pop()
runpy.run_module(f"accelerate.test_utils.scripts.{script}", run_name="__main__")
tell()
