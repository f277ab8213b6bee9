"""Describes the speed of the simulated machine: its profile, and the durations of work in a timing."""

from streamrace.device.hardware.clock import Clock, HardwareTiming, Scale
from streamrace.device.hardware.profile import Profile, ProfileError, host_names, load_profile, profile_names

__all__ = ["Clock", "HardwareTiming", "Profile", "ProfileError", "Scale", "host_names", "load_profile", "profile_names"]
