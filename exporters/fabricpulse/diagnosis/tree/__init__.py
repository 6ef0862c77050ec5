"""Which NICs share a machine, a leaf, a pod: told from minimum two-way delays alone. Pure."""
