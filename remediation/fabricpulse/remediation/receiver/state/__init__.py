"""The receiver's state: alerts, targets, agents, and the transactions that change them. Pure."""
