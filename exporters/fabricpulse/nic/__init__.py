"""The NIC exporter: RDMA and link state of this host's NICs as the kernel has it, with every flap."""
