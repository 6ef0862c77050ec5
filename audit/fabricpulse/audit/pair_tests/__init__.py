"""Tests between NICs: who tests whom, what the results mean, and whom they blame. Pure."""
