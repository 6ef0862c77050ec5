"""The receiver: webhook in, journal, policy, guards, desired state out."""
