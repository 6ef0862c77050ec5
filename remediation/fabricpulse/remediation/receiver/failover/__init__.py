"""Failover and return of NICs: what is decided, and what became of it. Pure."""
