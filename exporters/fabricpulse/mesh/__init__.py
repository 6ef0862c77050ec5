"""The mesh exporter: probes between NICs, verdicts on NICs and edges, one-way delays on fleet time."""
