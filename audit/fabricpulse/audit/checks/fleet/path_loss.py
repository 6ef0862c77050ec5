"""Loss of pairs."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="path-loss",
    category="back-end",
    severity="error",
    title="Loss of pairs",
    proves=(
        "Datagrams of the full MTU, sent at a quarter of `--rate` (with `--loss-seconds` at all of it), arrive: "
        "less than 0.1 % of them are lost."
    ),
    how=(
        "2,000 numbered datagrams each way of each tested pair (`audit run --transfers`), and as many as "
        "`--loss-seconds` have room for; what the receiver's own socket had no room for is not counted, and a way is "
        "not judged where the kernel does not say closely enough how many those were. Ways that lose are tested again."
    ),
    fix=(
        "Clean or change the cable and the module of the NIC named; look at errors and discards of its switch "
        "port."
    ),
)
