"""Why is this job slow? Facts from Prometheus, ranked causes with their evidence, and who waits for whom."""
