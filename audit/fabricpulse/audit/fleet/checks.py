"""The checks that compare hosts, and all checks by identifier."""

from collections.abc import Mapping
from functools import cache

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.registry import host_checks

FLEET_CHECKS: tuple[Check, ...] = (
    Check(
        "odd-one-out",
        "fleet",
        "error",
        "Odd one out",
        "No host and no NIC has a value that differs from what more than half of its like have.",
        "Attributes of hosts and NICs: what follows from hardware is compared among like machines, what is configured "
        "among hosts of a role and NICs of a network. In groups below three none is odd (`fleet-divided`).",
        "Bring the host named to the usual value, or pin both values in a profile where the difference is meant. The "
        "severity is the attribute's.",
    ),
    Check(
        "fleet-divided",
        "fleet",
        "warning",
        "Fleet divided",
        "In each group of like hosts or NICs one value of each attribute has a majority.",
        "In the groups of `odd-one-out`; without a majority it is not known which value is right, so no host is named. "
        "Two hosts are compared where they are the same machine, with GPUs or RDMA devices.",
        "Decide which value is right, and pin it in a profile.",
    ),
    Check(
        "profile",
        "fleet",
        "error",
        "Profile",
        "Every host and NIC has the values that the profile pins.",
        "The profile of `--profile`, written by `audit learn` from a run over a good fleet.",
        "Bring the host named to the value of the profile, or change the profile. The severity is the attribute's.",
    ),
    Check(
        "profile-unproven",
        "fleet",
        "warning",
        "Profile that is not proven",
        "The run has seen all that the profile pins: every value, and every limit of paths.",
        "Values of hosts and measurements of tests, against the profile of `--profile` or `--sla`.",
        "Give the agent the right to read the value named, run with `--transfers`, or pin the role of the host named "
        "in the profile.",
    ),
    Check(
        "clock-offset",
        "fleet",
        "error",
        "Clocks beside one another",
        "The clock of no host is more than two seconds off those of most hosts.",
        "When each host says that its audit began, by its own clock, between the request and the answer by the clock "
        "of `audit run`: an interval as long as the audit takes. The difference that more than half of the clocks "
        "allow, with that of `audit run` unless a host has the same, is the fleet's; of two that differ none is named.",
        "Start the time service of the host named (`chronyc tracking`), step its clock, and see that its name servers "
        "and time servers are reachable. `clock-synchronized` shows what fleet time needs, which is far less.",
    ),
    Check(
        "sla-path",
        "back-end",
        "error",
        "Limits of paths",
        "Bandwidth, loss and one-way delay of all paths keep the limits of the profile, whatever others reach.",
        "`paths` of the profile (`least_gbps`, `most_loss`, `most_delay_us`), against `audit run --transfers`.",
        "As for `path-bandwidth`, `path-loss` and `path-delay`. Where all paths miss the limit it is the fleet's, or "
        "the test's: one processor core a NIC may be what limits TCP.",
    ),
    Check(
        "path-connectivity",
        "back-end",
        "error",
        "Connectivity of pairs",
        "Packets pass between the NICs of each network, both ways, on all pairs that were tested.",
        "Echo requests from the audit agents (`audit run --paths`), in at most 2 log2 n rounds of disjoint pairs; the "
        "run says which share of the pairs of leaves that is. Failed tests are put down to a host, a NIC or a path. "
        "The addresses at which agents were reached are tested in the same way, as the networks `front-end` and "
        "`front-end IPv6`; findings of these have the category front-end.",
        "Look at the link, the address and the routes of the NIC named; a path that fails between two good NICs is the "
        "fabric's: follow it hop by hop.",
    ),
    Check(
        "path-mtu",
        "back-end",
        "error",
        "MTU end to end",
        "Packets as large as the sender's MTU pass whole, both ways, on all pairs that were tested.",
        "Echo requests of the size of the NIC's MTU that may not be fragmented, where small ones pass. Between the "
        "addresses at which agents were reached: of the smaller MTU of both ends; findings of these have the category "
        "front-end.",
        "Set the MTU of the switch ports on the way (9216 or what they can do), or lower that of the NICs.",
    ),
    Check(
        "path-loss",
        "back-end",
        "error",
        "Loss of pairs",
        "Datagrams of the full MTU, sent at a quarter of `--rate`, arrive: less than 0.1 % of them are lost.",
        "2,000 numbered datagrams each way of each tested pair (`audit run --transfers`); what the receiver's own "
        "socket had no room for is not counted. Ways that lose are tested again.",
        "Clean or change the cable and the module of the NIC named; look at errors and discards of its switch port.",
    ),
    Check(
        "path-bandwidth",
        "back-end",
        "error",
        "Bandwidth of pairs",
        "TCP between the NICs of each network reaches 80 % of `--rate`, or of what most others reach.",
        "Paced TCP streams, each way of each tested pair, one transfer a NIC at a time (`audit run --transfers`); slow "
        "ways are tested again, with other partners where that decides whose fault it is.",
        "Compare speed, PCIe width, NUMA node and pause frames of the NIC named with those of its peers; a slow path "
        "between two good NICs is the fabric's.",
    ),
    Check(
        "path-rdma",
        "back-end",
        "error",
        "Bandwidth of pairs by RDMA",
        "RDMA writes between the NICs of each network come through, and reach 80 % of `--rate`, or of what most others "
        "reach.",
        "RDMA WRITEs over a reliable connected queue pair of RoCE v2, each way of each tested pair, after TCP (`audit "
        "run --transfers --rdma`); a write counts when the other NIC has acknowledged it, and fails after four tries "
        "without an answer. Slow ways are tested again, with other partners where that decides whose fault it is.",
        "Where `path-bandwidth` finds nothing for the NIC or path named it is what RoCE alone needs: UDP port 4791 let "
        "through, priority and flow control (PFC, ECN) equal on all hops, the MTU of the RDMA port. Where both find it "
        "fix that first.",
    ),
    Check(
        "path-ecmp",
        "back-end",
        "error",
        "Each of several equal paths",
        "Datagrams of all UDP source ports arrive alike: none loses where others lose nothing, none is later.",
        "The datagrams of `audit run --transfers` leave from 16 source ports in turn, 125 each with the defaults, to "
        "one port: switches spread them over equal paths (ECMP) by their ports. Ways that differ are tested again.",
        "Trace the path of a port that is named, and of one that is not: `traceroute --udp --sport=PORT -p DPORT HOST` "
        "from the host named; the hop where they part begins the bad path.",
    ),
    Check(
        "path-duplex",
        "back-end",
        "error",
        "Both directions at once",
        "TCP in both directions of a pair at once reaches 80 % of what the two reach one after the other, or of the "
        "share that most others reach.",
        "Paced TCP streams both ways at once between the NICs of each tested pair, after each way alone (`audit run "
        "--transfers`, unless `--no-duplex`); pairs that are slow are tested again.",
        "Look at the duplex of the NIC named (`ethtool`), at its PCIe width, speed and payload size, and at what "
        "shares its PCIe switch; pause frames that the NIC sends show a host that cannot take in what comes.",
    ),
    Check(
        "path-delay",
        "back-end",
        "warning",
        "One-way delay of pairs",
        "The smallest one-way delay of each way is like that of others: within a leaf, or between.",
        "Fleet time in the datagrams of `audit run --transfers`; more than 1.5 times the lower quartile and 50 µs "
        "above, with the bounds of the clocks in its favour. Not judged without fleet time.",
        "Follow the path hop by hop: a detour, a queue that never empties, or interrupts of the NIC named that are "
        "held back (`ethtool -c`).",
    ),
    Check(
        "nccl-ring",
        "back-end",
        "warning",
        "NCCL ring beside its pairs",
        "A ring over all hosts reaches what its slowest pair reaches alone; the order of ranks costs nothing.",
        "`audit run --nccl`: the NCCL plugin's ring, 1, 2, 4 and 8 lanes a connection, in the order that hosts are "
        "given and, where leaves are known, with the hosts of a leaf beside one another; compared with `--transfers`.",
        "Good pairs and a slow ring: paths share links. More lanes (`FABRICPULSE_MAX_LANES`, "
        "`NCCL_IB_QPS_PER_CONNECTION`) spread over more of them; give ranks in the order of leaves; look for uplinks "
        "that are down.",
    ),
    Check(
        "nccl-data",
        "back-end",
        "error",
        "Data of the NCCL ring",
        "Every byte of a verified all-reduce over all hosts is right.",
        "`audit run --nccl` computes the result on each host and compares it.",
        "Something changes packets and fixes their checksum: a switch's memory, a NIC, a host's memory. Halve the list "
        "of hosts (`--hosts`) until the ring is right; read memory errors of the host that is left.",
    ),
    Check(
        "path-untested",
        "back-end",
        "warning",
        "NICs that were not tested",
        "Every NIC that tests were planned for has taken part.",
        "What agents answer: a NIC that carries a job is not tested with traffic, and says so. That the kernel "
        "finds no route by the NIC at which a host was reached (IPv6) is a finding of the category front-end.",
        "Run the tests again when no job runs on the host named; look at its agent if it has not answered.",
    ),
    Check(
        "wiring",
        "back-end",
        "error",
        "Wiring plan",
        "The cable of each NIC goes to the switch, and the port, that the plan names.",
        "LLDP frames that the agents receive (`audit run --wiring`), against the plan: `--wiring-file`, or `leaf` of "
        "the NIC in the membership.",
        "Move the cable of the NIC named, or correct the plan; a NIC that it is swapped with is named too.",
    ),
    Check(
        "wiring-unknown",
        "back-end",
        "warning",
        "Wiring that is not known",
        "For each NIC of the plan LLDP has shown where its cable goes.",
        "LLDP frames that the agents receive (`audit run --wiring`) within `--wiring-wait`.",
        "Switch LLDP on at the switch port; give the agent CAP_NET_RAW (audit/README.md); a NIC whose firmware keeps "
        "LLDP to itself must be set not to (ice: `ethtool --set-priv-flags DEV fw-lldp-agent off`).",
    ),
    Check(
        "host-silent",
        "fleet",
        "error",
        "Silent hosts",
        "Every host that was to be audited has answered.",
        "Requests to the audit agent of each host, with a limit on the time of each.",
        "See that the host is up, that its name resolves, and that its agent runs with the same token.",
    ),
)


@cache
def all_checks() -> Mapping[str, Check]:
    """Identifier -> check, in the order in which they are shown."""
    found = {entry.check.id: entry.check for entry in host_checks()}
    return found | {check.id: check for check in FLEET_CHECKS}
