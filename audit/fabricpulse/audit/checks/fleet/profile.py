"""Profile."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="profile",
    category="fleet",
    severity="error",
    title="Profile",
    proves="Every host and NIC has the values that the profile pins.",
    how="The profile of `--profile`, written by `audit learn` from a run over a good fleet.",
    fix=(
        "Bring the host named to the value of the profile, or change the profile. The severity is the "
        "attribute's."
    ),
)
