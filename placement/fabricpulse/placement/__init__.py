"""Placement: which hosts a job takes, and which rank runs on which GPU, so that heavy pairs are near one another."""
