"""Fits a hardware profile to a trace of one's own GPU: :func:`calibrate`."""

from streamrace.studies.calibration.fit import Calibrated, calibrate
from streamrace.studies.calibration.kineto import ProfilerTrace, read
from streamrace.studies.calibration.profiles import written

__all__ = ["Calibrated", "ProfilerTrace", "calibrate", "read", "written"]
