"""Reduces a program to a minimal one that still shows the same race: nothing in it can be left out."""
