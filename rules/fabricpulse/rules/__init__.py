"""`fabricpulse rules`: from the mixin to files that Prometheus and Grafana read."""
