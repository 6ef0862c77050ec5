"""Comparing: the fleet with itself, with a profile, with a wiring plan, and a run with another."""
