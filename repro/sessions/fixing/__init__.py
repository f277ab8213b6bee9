"""Implements `streamrace fix`: places for a missing order, their cost, and whether they cure the race."""
