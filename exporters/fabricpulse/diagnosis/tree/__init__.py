"""Which NICs share a machine, a leaf, a pod: found from minimum two-way delays alone. Pure."""
