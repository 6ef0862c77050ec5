"""Delay of the NCCL ring beside that of probes."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="nccl-delay",
    category="back-end",
    severity="warning",
    title="Delay of the NCCL ring beside that of probes",
    proves=(
        "What the NCCL plugin sends takes the way that probes take: the smallest one-way delay inside the ring is "
        "like that between the same NICs outside of it."
    ),
    how=(
        "`audit run --nccl` on hosts with fleet time: of each connection of the rings with 1, 2, 4 and 8 lanes the "
        "smallest delay of a chunk (the lower end of its bucket), beside the smallest of the mesh exporter's probes on "
        "that edge, or of the datagrams of `--transfers`. Late is 1.5 times as much and 50 µs above over queue pairs, "
        "500 µs over TCP, and what a slow link needs for the 1 MiB of a step of the ring, with the bounds of the "
        "clocks in its favour, in each of two or more rings; without that time it is not judged. That is no more than "
        "a step takes on average, or at half of the rate that `--transfers` has seen of both NICs: give it a `--rate` "
        "near that of the links."
    ),
    fix=(
        "Compare how the job's packets and probes are marked and encapsulated: GID index and RoCE version "
        "(`roce-gid`, `gid-index-same`; RoCE v1 is not routed and not marked), traffic class and DSCP, policy "
        "routes by protocol or port; then the ports of the queue pairs (`path-ecmp`)."
    ),
)
