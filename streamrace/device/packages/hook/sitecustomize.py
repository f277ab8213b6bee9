"""In front of the import path while DeepSpeed is built: only the step that makes its files imports torch.

pip runs ``setup.py`` two or three times, and each time it imports torch and all of DeepSpeed, for seconds. What it
learns there goes into a file of the wheel (``git_version_info_installed.py``), so the step that makes the wheel has
torch as ever. The steps before only ask for names and requirements, which are the same without.

With STREAMRACE_BUILD_WITHOUT_TORCH no step has it: a release whose own Python does not import here is built as on a
machine without torch, where DeepSpeed's build leaves itself unimported.
"""

import os
import sys

_ASKING = {"egg_info", "dist_info", "get_requires_for_build_wheel", "prepare_metadata_for_build_wheel"}

if _ASKING & {*sys.orig_argv} or os.environ.get("STREAMRACE_BUILD_WITHOUT_TORCH"):
    sys.modules["torch"] = None  # type: ignore[assignment]  # importing it is an ImportError
