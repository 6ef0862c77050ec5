"""Alerts that a daemon tells Alertmanager itself, ahead of the rule that says the same."""
