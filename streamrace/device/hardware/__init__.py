"""How fast the simulated machine is: its profile, and how long work takes on it in a timing."""

from streamrace.device.hardware.clock import Clock, HardwareTiming, Scale
from streamrace.device.hardware.profile import Profile, ProfileError, load_profile, profile_names

__all__ = ["Clock", "HardwareTiming", "Profile", "ProfileError", "Scale", "load_profile", "profile_names"]
