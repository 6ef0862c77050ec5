"""Rebalancing: plans for lanes and paths, tried, measured, kept or rolled back. Pure."""
