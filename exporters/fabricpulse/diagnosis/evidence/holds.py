"""For how long a fault must be found before it is reported."""

from fabricpulse.diagnosis.search.suspect import Suspect

# An exporter that is restarted looks like a dead NIC for some seconds; a cable does not restart.
# Only where all is lost: who loses a part of his packets is running.
SILENT_HOLD_S = {"host": 20.0, "nic": 20.0, "nic_tx": 20.0, "nic_rx": 20.0}
# Flows are tried with large packets one after the other: the first that lose them may have an end in common.
_LARGE_HOLD_S = 4.0
# Hosts report at different moments: for a second the evidence is that of some of them. A switch waits for the second
# report of all: only then it is known whether it is dead.
_USUAL_HOLD_S, _SWITCH_HOLD_S = 1.2, 3.0


def hold_s(suspect: Suspect) -> float:
    """Seconds, where nothing else makes it doubtful."""
    if suspect.what == "mtu":
        return _LARGE_HOLD_S
    if suspect.kind == "switch":
        return _SWITCH_HOLD_S
    return SILENT_HOLD_S.get(suspect.kind, _USUAL_HOLD_S) if suspect.silent else _USUAL_HOLD_S
