"""The qp exporter: telemetry of the NCCL plugin, from shared memory to `/metrics`."""
