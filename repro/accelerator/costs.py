"""The hardware model of the simulated GPU, which this device shares (:mod:`simgpu.hardware`)."""

from simgpu.hardware import Clock, Profile, ProfileError, Scale, Timing, load_profile, profile_names

__all__ = ["Clock", "Profile", "ProfileError", "Scale", "Timing", "load_profile", "profile_names"]
