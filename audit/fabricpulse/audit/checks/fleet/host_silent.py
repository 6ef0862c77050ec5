"""Silent hosts."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="host-silent",
    category="fleet",
    severity="error",
    title="Silent hosts",
    proves="Every host that was to be audited has answered.",
    how=(
        "Requests to the audit agent of each host, with a limit on the time of each; an agent that answers no more "
        "while paths are tested is silent, too."
    ),
    fix="See that the host is up, that its name resolves, and that its agent runs with the same token.",
)
