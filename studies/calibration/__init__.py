"""From a trace of one's own GPU to a hardware profile: :func:`calibrate`."""

from studies.calibration.fit import Calibrated, calibrate
from studies.calibration.kineto import ProfilerTrace, read
from studies.calibration.profiles import written

__all__ = ["Calibrated", "ProfilerTrace", "calibrate", "read", "written"]
