"""The node agent: desired state in, control sockets of the host's jobs out."""
