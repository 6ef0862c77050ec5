"""The audit of a fleet over its agents: asking, testing, telling how far it is."""
