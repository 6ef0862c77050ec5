"""Who is in the fleet: hosts with a lease, their slots, what they reported of themselves and of their neighbours. Pure.

A host has a slot, a number that it keeps; the edges of a host name its peers by slot, so that a round of the whole
fleet is arithmetic on arrays.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.coordinator.duplicate_hosts import DuplicateHostDetector, NameTakenError
from fabricpulse.clocksync.coordinator.members import Columns, Member
from fabricpulse.clocksync.coordinator.nic_biases import NicNumbers
from fabricpulse.clocksync.wire.messages import EdgeName, HostInfo
from fabricpulse.clocksync.wire.report_table import name_hash

# So many names that nobody uses may stay.
_FEW = 1024
# Any odd number; names are hashes already.
_MIX = np.uint64(0x9E3779B97F4A7C15)


def _nothing(_: Member) -> None:
    """Default of Roster.on_expired."""


@dataclass
class Roster:
    """Members by name. generation : counts changes of membership. on_expired : called with each member that is no
    longer one.
    """

    members: dict[str, Member] = field(default_factory=dict)
    columns: Columns = field(default_factory=Columns)
    on_expired: Callable[[Member], None] = _nothing
    generation: int = 0
    _duplicate_hosts: DuplicateHostDetector = field(default_factory=DuplicateHostDetector)
    _slots: dict[str, int] = field(default_factory=dict)
    # Names by their hash: datagrams name the root so.
    _names: dict[int, str] = field(default_factory=dict)
    _by_slot: dict[int, Member] = field(default_factory=dict)
    # Names by slot; names of NICs by the number that edges name them by, and the other way round.
    _slot_names: list[str] = field(default_factory=list)
    _devices: list[str] = field(default_factory=list)
    _device_numbers: dict[str, int] = field(default_factory=dict)
    # Beyond so many names of NICs, those that no edge has any more are given up.
    _most_devices: int = _FEW
    # Slots that the last renumbering left; 0 once a lease has run out since.
    _slots_kept: int = 0
    # Slots of the peers of all slots behind each other, and where those of each begin; None when that has changed.
    _peers: tuple[NDArray[np.int32], NDArray[np.intp]] | None = None
    # With the peers that they are of.
    _nics: tuple[NDArray[np.int32], NicNumbers | None] | None = None

    @property
    def slots(self) -> int:
        """All slots are below; not every one has a member."""
        return len(self._slots)

    def at(self, slot: int) -> Member:
        """The member of a slot. Raises KeyError when there is none."""
        return self._by_slot[slot]

    def find(self, slot: int) -> Member | None:
        """The member of a slot, if it has one."""
        return self._by_slot.get(slot)

    def name(self, hashed: int) -> str:
        """The host whose name has this hash; "" when none is known here."""
        return self._names.get(hashed, "")

    def admit(self, name: str, epoch: int, now_s: float, lease_s: float) -> Member:
        """The member of this name; a sidecar of another epoch than before is a new one. Raises NameTakenError or
        NameHeldError when another sidecar reports under the same name, or did so just now.
        """
        member = self.members.get(name)
        if member is None:
            self._duplicate_hosts.check(name, epoch, now_s, lease_s)
        elif member.epoch != epoch:
            self._replace(member, epoch, now_s, lease_s)
        else:
            return member
        return self._join(name, epoch)

    def take_info(self, member: Member, info: HostInfo) -> None:
        """What a host reports of itself."""
        edges, info = self._numbered(info.edges), msgspec.structs.replace(info, edges=())
        if info == member.info and np.array_equal(edges, member.edges):
            return
        if member.info is None or (info.nics, info.url) != (member.info.nics, member.info.url):
            self.generation += 1
            self.columns.at["moved"][member.slot] = self.generation
        # Comes first, as it may fail: the edges of a member and what is computed of all of them are to agree.
        self.columns.at["info"][member.slot] = info.generation
        member.info, member.edges = info, edges
        self._peers = None
        if len(self._devices) > self._most_devices:
            self._renumber_devices()

    def _numbered(self, edges: Sequence[EdgeName]) -> NDArray[np.int32]:
        rows = [(self._device(e.device), self.slot(e.peer), self._device(e.peer_device)) for e in edges]
        return np.array(rows, np.int32).reshape(-1, 3)

    def _device(self, name: str) -> int:
        number = self._device_numbers.get(name)
        if number is None:
            number = self._device_numbers[name] = len(self._devices)
            self._devices.append(name)
        return number

    def _renumber_devices(self) -> None:
        """Gives up the names of NICs that no edge of a member has: who reports others each time must not fill the
        memory. As the limit is twice what is left, the next time comes after as many new names.
        """
        members = self.members.values()
        edges = [member.edges for member in members]
        used = np.unique(np.concatenate(edges)[:, ::2] if edges else np.empty(0, np.int32))
        number = np.zeros(len(self._devices), np.int32)
        number[used] = np.arange(len(used))
        for member in members:
            member.edges[:, ::2] = number[member.edges[:, ::2]]
        self._devices = [self._devices[device] for device in used.tolist()]
        self._device_numbers = {name: at for at, name in enumerate(self._devices)}
        self._most_devices = _FEW + 2 * len(used)

    def edges(self, member: Member) -> list[EdgeName]:
        """The names of the edges of a host, in the order in which it reports them."""
        names, devices = self._slot_names, self._devices
        return [
            EdgeName(devices[own], names[peer], devices[other]) for own, peer, other in member.edges.tolist()
        ]

    def _replace(self, member: Member, epoch: int, now_s: float, lease_s: float) -> None:
        """Makes room for the next sidecar of its name, once the previous one has ended."""
        received_s = float(self.columns.at["received_s"][member.slot])
        try:
            self._duplicate_hosts.replace(member.name, epoch, received_s, now_s, lease_s)
        except NameTakenError:
            self._forget(self.members.pop(member.name))
            self.generation += 1
            raise
        self._forget(member)

    def _join(self, name: str, epoch: int) -> Member:
        slot = self.slot(name)
        member = Member(self.columns, name, slot, epoch)
        self.members[name] = self._by_slot[slot] = member
        self.columns.clear(slot)
        self.columns.at["joined"][slot] = True
        self.columns.at["name"][slot] = name_hash(name)
        self.generation += 1
        self._peers = None
        return member

    def slot(self, name: str) -> int:
        """The slot of a host, which need not be a member: others may have edges to it."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = len(self._slots)
            self._slot_names.append(name)
            self._names[name_hash(name)] = name
            self.columns.make_room(len(self._slots))
        return slot

    def _forget(self, member: Member) -> None:
        self._by_slot.pop(member.slot)
        self.columns.clear(member.slot)
        self._peers = None
        self.on_expired(member)

    def expire(self, now_s: float, lease_s: float) -> list[str]:
        """Drops members whose lease has run out and returns their names."""
        self._duplicate_hosts.expire(now_s, lease_s)
        columns = self.columns.at
        slots = np.flatnonzero(columns["joined"] & (columns["expires_s"] < now_s)).tolist()
        expired = [self._by_slot[slot].name for slot in slots]
        for name in expired:
            self._forget(self.members.pop(name))
        if expired:
            self.generation += 1
            self._slots_kept = 0
        return expired

    @property
    def crowded(self) -> bool:
        """Most slots are of hosts that are no members, and not because edges and reports named so many last time."""
        return len(self._slots) > max(_FEW + 4 * len(self.members), 2 * self._slots_kept)

    def renumber(self, lasting: Iterable[int] = ()) -> NDArray[np.int32]:
        """Gives up the slots of hosts that are no members, nor at the other ends of their edges, nor `lasting`; and the
        names of NICs. The new slot of each old one, -1 for none.
        """
        columns, held_out = self.columns.at, self.columns.held_out
        moved = np.full(len(self._slots), -1, np.int32)
        names, self._slot_names = self._slot_names, []
        self._slots.clear()
        self._names.clear()
        members = list(self.members.values())
        old = [member.slot for member in members]
        for member in members:
            member.slot = self.slot(member.name)
        new = [member.slot for member in members]
        moved[old] = new
        for member in members:
            peers = member.edges[:, 1].copy()
            member.edges[:, 1] = moved[peers] = [self.slot(names[peer]) for peer in peers.tolist()]
        for slot in lasting:
            moved[slot] = self.slot(names[slot])
        self._renumber_devices()
        self.columns.at, self.columns.held_out = np.zeros(0, columns.dtype), held_out[:0]
        self.columns.make_room(len(self._slots))
        self.columns.at[new], self.columns.held_out[new] = columns[old], held_out[old]
        self._by_slot = {member.slot: member for member in members}
        self._peers, self._slots_kept = None, len(self._slots)
        return moved

    def peers(self) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """Slots at the other ends of the edges of all slots, behind each other; where those of each slot begin (and one
        more entry for the end of the last).
        """
        if self._peers is None:
            counts = np.zeros(len(self._slots) + 1, np.intp)
            members = sorted(self.members.values(), key=lambda member: member.slot)
            counts[[member.slot + 1 for member in members]] = [len(member.edges) for member in members]
            slots = [member.edges[:, 1] for member in members]
            flat = np.concatenate(slots) if slots else np.empty(0, np.int32)
            self._peers = flat, np.cumsum(counts)
        return self._peers

    def nics(self) -> NicNumbers | None:
        """The NICs at the ends of the edges of all slots, as in peers(); None where no host has edges of two."""
        flat, begin = self.peers()
        if self._nics is None or self._nics[0] is not flat:
            self._nics = flat, self._nic_numbers(flat, begin)
        return self._nics[1]

    def _nic_numbers(self, flat: NDArray[np.int32], begin: NDArray[np.intp]) -> NicNumbers | None:
        owner = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
        members = sorted(self.members.values(), key=lambda member: member.slot)
        ends = [np.concatenate([member.edges[:, at] for member in members] or [flat]) for at in (0, 2)]
        if not ((ends[0][1:] != ends[0][:-1]) & (owner[1:] == owner[:-1])).any():
            return None
        hashes = np.fromiter(map(name_hash, self._devices), np.uint64, len(self._devices))
        device, peer_device = (hashes[numbers] for numbers in ends)
        # Names of slots that have no member are no columns.
        name = np.zeros(len(self._slots), np.uint64)
        name[list(self._slots.values())] = np.fromiter(map(name_hash, self._slots), np.uint64, len(name))
        return NicNumbers.of(
            name[owner] * _MIX + device, name[flat] * _MIX + peer_device, owner, flat.astype(np.intp)
        )

    def neighbours_due(self, slots: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of `slots` have a neighbour whose present address they have not been sent."""
        flat, begin = self.peers()
        columns = self.columns.at
        owner = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
        due = columns["moved"][flat] > columns["neighbours_sent"][owner]
        return (np.bincount(owner[due], minlength=len(begin) - 1) > 0)[slots]

    @property
    def duplicates(self) -> tuple[str, ...]:
        """Names under which two hosts report, neither of which is a member."""
        return self._duplicate_hosts.duplicates
