"""The coordinator's part of the diagnosis: routes, alerts, metrics, and the process that computes."""
