"""Real RDMA verbs without RDMA hardware: a throw-away guest with Soft-RoCE (rdma_rxe) and the lab's kind of faults."""
