"""The coordinator's end of reports by datagram: who has which channel, and what the fleet answers.

The native intake takes the datagrams from the sockets and checks them; here they become rows of the fleet's table, and
the columns of the fleet become replies, all of a round at once.
"""

import secrets
import socket
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync._report_intake import ReportIntake
from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.coordinator.members import Member
from fabricpulse.clocksync.wire.datagram import (
    ARRIVAL_DTYPE,
    HAS_LINE,
    HAS_QUORUM,
    NEW_NEIGHBOURS,
    NO_QUORUM,
    QUORUM_ANCHORED,
    REPLY_DTYPE,
    RESEND_INFO,
    rows_of,
)
from fabricpulse.clocksync.wire.messages import Channel
from fabricpulse.clocksync.wire.report_table import Records

# Room for reports of thousands of hosts in the time that the thread may have to wait for a core. The kernel gives what
# net.core.rmem_max allows to a process without CAP_NET_ADMIN.
_RECEIVE_BUFFER = 16 << 20
# Hosts that are asked in one round to fetch a new neighbour list by HTTP: where a whole fleet comes up the lists of all
# of them change again and again.
_FETCHES_A_ROUND = 256


class ReportChannels:
    """Channels of the members of `fleet`. Raises OSError when no socket can be bound to one of the addresses."""

    def __init__(self, fleet: Fleet, listen: Sequence[tuple[str, int]]) -> None:
        self._fleet = fleet
        addresses = [address for host, port in listen for address in _numeric(host, port)]
        self.intake = ReportIntake(list(dict.fromkeys(addresses)), _RECEIVE_BUFFER)
        self._members: dict[int, Member] = {}
        self._heads: Records = np.empty(0, np.void)
        fleet.on_expired = self.close

    def open(self, member: Member) -> Channel:
        """A new channel for `member`; the one that it had ends."""
        self.close(member)
        key = secrets.token_bytes(16)
        member.channel = self.intake.open_channel(key)
        self._members[member.channel] = member
        return Channel((member.channel + self.intake.salt) & 0xFFFFFFFF, key)

    def close(self, member: Member) -> None:
        """Ends the channel of `member`, if it has one."""
        if member.channel >= 0:
            self._members.pop(member.channel, None)
            self.intake.close_channel(member.channel)
            member.channel = -1

    def close_all(self) -> None:
        """Ends all channels: the next report of their hosts is answered by a reset, and made by HTTP."""
        for member in list(self._members.values()):
            self.close(member)

    def take(self) -> tuple[Records, Records]:
        """Rows and edge records of the reports since the last call, for `Fleet.solve_round`."""
        arrivals, edges = self.intake.take()
        slot_of = np.full(max(self._members, default=-1) + 2, -1, np.int32)
        slot_of[list(self._members)] = [member.slot for member in self._members.values()]
        rows, records, self._heads = rows_of(arrivals, edges, _padded(slot_of, arrivals))
        return rows, records

    def answer(self) -> int:
        """Answers what was taken, after the solve; returns how many replies were sent."""
        heads, self._heads = self._heads, self._heads[:0]
        if not len(heads):
            return 0
        # Of several reports of one host the last is answered; and a member's lease may have run out in the meantime.
        last: NDArray[np.intp] = np.full(int(heads["channel"].max()) + 1, -1, np.intp)
        np.maximum.at(last, heads["channel"], np.arange(len(heads)))
        for number in np.flatnonzero(last >= 0).tolist():
            if number not in self._members:
                last[number] = -1
        heads = heads[last[last >= 0]]
        if not len(heads):
            return 0
        channels = heads["channel"]
        slots = np.array([self._members[number].slot for number in channels.tolist()], np.intp)
        at = self._fleet.roster.columns.at[slots]
        replies = np.zeros(len(heads), REPLY_DTYPE)
        replies["channel"], replies["sequence"] = channels, heads["sequence"]
        replies["solve"], replies["generation"] = (
            self._fleet.solves,
            self._fleet.roster.generation & 0xFFFFFFFF,
        )
        for name in ("ref_ns", "correction_ns", "rate_ppt"):
            replies[name] = at[name]
        replies["bound_ns"] = at["line_bound_ns"]
        replies["suspect"] = at["suspect"]
        replies["estimated_error_ns"], replies["drift_ppb"] = at["estimated_error_ns"], at["drift_ppb"]
        ignorant = (at["info"] < 0) | (at["info"] != at["generation"])
        replies["flags"] = (
            HAS_LINE * at["placed"] + RESEND_INFO * ignorant + NEW_NEIGHBOURS * self._due_for_fetch(slots)
        )
        replies["flags"] += NO_QUORUM * self._fleet.no_quorum
        quorum = self._fleet.quorum
        if quorum is not None and quorum.root:
            replies["flags"] += HAS_QUORUM + QUORUM_ANCHORED * quorum.anchored
            replies["quorum_s"], replies["quorum_hosts"] = quorum.moment_s & 0xFFFFFFFF, quorum.hosts
        # What is free then stays with the process: the next round is a second away. malloc_trim gives 200 MB of 50,000
        # hosts back until then, but the pages that a round touches anew cost it a tenth of its time, and the most
        # memory is hardly less (docs/measurements/coordinator-load.md).
        return self.intake.answer(
            replies.tobytes(),
            at["residuals"].tobytes(),
            self._fleet.roster.columns.residuals,
            self._fleet.root,
        )

    def _due_for_fetch(self, slots: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of `slots` should fetch a new neighbour list now; the others follow in later rounds."""
        due = np.flatnonzero(self._fleet.roster.neighbours_due(slots))
        quorum = self._fleet.quorum
        if quorum is not None and not quorum.root:
            # By datagram came only the hash of a name that is not known here; by HTTP comes the name.
            due = np.arange(len(slots))
        chosen = np.zeros(len(slots), np.bool_)
        chosen[np.roll(due, -self._fleet.solves * _FETCHES_A_ROUND)[:_FETCHES_A_ROUND]] = True
        return chosen

    def stop(self) -> None:
        """Closes the sockets."""
        self.intake.stop()


def _padded(slot_of: NDArray[np.int32], arrivals: bytes | NDArray[np.uint8]) -> NDArray[np.int32]:
    """With room for channels that were closed after their datagrams had been taken."""
    numbers = np.frombuffer(arrivals, ARRIVAL_DTYPE)["channel"]
    most = int(numbers.max(initial=0))
    return np.pad(slot_of, (0, max(0, most + 1 - len(slot_of))), constant_values=-1)


def _numeric(host: str, port: int) -> list[tuple[str, int]]:
    """What the HTTP server would listen on, as addresses."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
    return [(str(address[0]).partition("%")[0], port) for *_, address in found]
