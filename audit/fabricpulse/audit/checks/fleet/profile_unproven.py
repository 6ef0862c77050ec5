"""Profile that is not proven."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="profile-unproven",
    category="fleet",
    severity="warning",
    title="Profile that is not proven",
    proves="The run has seen all that the profile pins: every value, and every limit of paths.",
    how="Values of hosts and measurements of tests, against the profile of `--profile` or `--sla`.",
    fix=(
        "Give the agent the right to read the value named, run with `--transfers`, or pin the role of the "
        "host named in the profile."
    ),
)
