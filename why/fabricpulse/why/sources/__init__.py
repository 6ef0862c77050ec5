"""What else tells of a job's ranks, beside Prometheus: one source a file."""
