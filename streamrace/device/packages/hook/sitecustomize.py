"""Hides torch from the preparing steps of DeepSpeed's build: only the step that creates files imports torch.

pip runs ``setup.py`` two or three times, and each run imports torch and all of DeepSpeed, for seconds. The results go
into a file of the wheel (``git_version_info_installed.py``), so the step that builds the wheel has torch as usual. The
steps before it only ask for names and requirements, which are the same without torch.

With STREAMRACE_BUILD_WITHOUT_TORCH no step has torch: a release whose own Python cannot be imported here is built as on
a machine without torch, where DeepSpeed's build does not import DeepSpeed.
"""

import os
import sys

_ASKING = {"egg_info", "dist_info", "get_requires_for_build_wheel", "prepare_metadata_for_build_wheel"}

if _ASKING & {*sys.orig_argv} or os.environ.get("STREAMRACE_BUILD_WITHOUT_TORCH"):
    sys.modules["torch"] = None  # type: ignore[assignment]  # importing it raises ImportError
