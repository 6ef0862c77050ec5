"""Alerts that a daemon pushes to Alertmanager, ahead of the rule for the same fault."""
