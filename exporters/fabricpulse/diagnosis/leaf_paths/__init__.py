"""Leaves with fewer live paths than their siblings, from traced paths."""
