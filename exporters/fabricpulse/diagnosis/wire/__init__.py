"""What mesh exporters tell the coordinator of their flows. Pure."""
