"""NCCL ring beside its pairs."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="nccl-ring",
    category="back-end",
    severity="warning",
    title="NCCL ring beside its pairs",
    proves=(
        "A ring over all hosts reaches what its slowest pair reaches alone; the order of ranks costs nothing."
    ),
    how=(
        "`audit run --nccl`: the NCCL plugin's ring, 1, 2, 4 and 8 lanes a connection, in the order that "
        "hosts are given and, where leaves are known, with the hosts of a leaf beside one another; compared "
        "with `--transfers`."
    ),
    fix=(
        "Good pairs and a slow ring: paths share links. More lanes (`FABRICPULSE_MAX_LANES`, "
        "`NCCL_IB_QPS_PER_CONNECTION`) spread over more of them; give ranks in the order of leaves; look for "
        "uplinks that are down."
    ),
)
