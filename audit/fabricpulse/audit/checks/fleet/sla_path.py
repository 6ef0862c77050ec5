"""Limits of paths."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="sla-path",
    category="back-end",
    severity="error",
    title="Limits of paths",
    proves=(
        "Bandwidth, loss and one-way delay of all paths keep the limits of the profile, whatever others "
        "reach."
    ),
    how=(
        "`paths` of the profile (`least_gbps`, `most_loss`, `most_delay_us`), against `audit run "
        "--transfers`."
    ),
    fix=(
        "As for `path-bandwidth`, `path-loss` and `path-delay`. Where all paths miss the limit it is the "
        "fleet's, or the test's: one processor core a NIC may be what limits TCP."
    ),
)
