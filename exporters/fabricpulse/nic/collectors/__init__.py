"""Collectors of the NIC exporter: one source each."""
