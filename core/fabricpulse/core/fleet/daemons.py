"""The daemons of a fleet: where each runs, and its port. Units, settings and http_sd have their names.

The one table of ports, for the daemons themselves, http_sd and the commands that query them.
"""

from typing import NamedTuple

HOST, MONITOR = "host", "monitor"


class Daemon(NamedTuple):
    """role : on what kind of machine it runs. port : where its HTTP server listens, as the units start it."""

    role: str
    port: int

    @property
    def listen(self) -> str:
        """The default of --web.listen-address: all addresses of the machine."""
        return f":{self.port}"


DAEMONS = {
    "mesh": Daemon(HOST, 9610),
    "nic": Daemon(HOST, 9611),
    "qp": Daemon(HOST, 9612),
    "clocksync-sidecar": Daemon(HOST, 9613),
    "clocksync-coordinator": Daemon(MONITOR, 9614),
    "remediation-receiver": Daemon(MONITOR, 9615),
    "remediation-node": Daemon(HOST, 9616),
    "audit-node": Daemon(HOST, 9617),
}
