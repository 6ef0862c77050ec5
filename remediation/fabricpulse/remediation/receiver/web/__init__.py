"""The receiver's HTTP interfaces: webhook, agents, operators; who asks, and how much is taken of whom."""
