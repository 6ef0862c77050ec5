"""The paths of the queue pairs of this host's jobs."""
