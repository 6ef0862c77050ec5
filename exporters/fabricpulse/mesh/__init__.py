"""The mesh exporter: probes between NICs, health of NICs and edges, one-way delays on fleet time."""
