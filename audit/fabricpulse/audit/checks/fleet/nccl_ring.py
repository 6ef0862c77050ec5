"""NCCL ring beside its pairs."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="nccl-ring",
    category="back-end",
    severity="warning",
    title="NCCL ring beside its pairs",
    proves=(
        "A ring over all hosts runs, and reaches what its slowest pair reaches alone; the order of ranks costs "
        "nothing."
    ),
    how=(
        "`audit run --nccl`: the NCCL plugin's ring, 1, 2, 4 and 8 lanes a connection, in the order that hosts are "
        "given and, where leaves are known, with the hosts of a leaf beside one another; compared with "
        "`--transfers`, up to 5 Gb/s a host: beyond that its own program is the limit. Then, where hosts have an "
        "NVIDIA GPU that nobody computes on and an interpreter with torch (`torch_python` of the agent), an "
        "all-reduce by NCCL itself on the first GPU of each, compared with one NIC of the slowest pair; NCCL takes "
        "its settings (`NCCL_…`) from the environment of the agent. A ring of the plugin that was not finished is "
        "an error, of which the hosts that say why are suspects."
    ),
    fix=(
        "A ring that did not run: what the host that is named says, in use or NCCL's own error. Good pairs and a "
        "slow ring: paths share links. More lanes (`FABRICPULSE_MAX_LANES`, `NCCL_IB_QPS_PER_CONNECTION`) spread "
        "over more of them; give ranks in the order of leaves; look for uplinks that are down. A slow NCCL beside "
        "a good ring: read its log (`NCCL_DEBUG=INFO`) for the transport and NICs that it takes."
    ),
)
