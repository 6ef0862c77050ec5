"""What an agent takes over of the desired state, and what it reports of it: never so much, nor so far from the future,
that the next receiver could not tell it anything any more. Pure.
"""

from collections.abc import Callable, Iterable, Mapping

from fabricpulse.remediation.protocol import MAX_HELD_GENERATION, MAX_NICS, DesiredNic, HeldNic

# Generations are milliseconds since 1970, or one more than what an agent has reported. A clock may be wrong by years;
# what is further ahead nobody could ever supersede: an agent does not report it, and obeys nothing older.
_SANE_AHEAD_MS = 10 * 365 * 86_400_000
_SANE_STEP = 1_000_000


def newer_of(
    nics: Iterable[DesiredNic],
    held: Mapping[str, DesiredNic],
    has_not: Callable[[str], bool],
    now_s: float,
) -> tuple[list[DesiredNic], str]:
    """Of `nics` those that are newer than what is held, and why some of these are ignored, "" if none is.

    has_not : whether the host is known not to have this NIC. now_s : seconds since 1970.
    """
    room = MAX_NICS - len(held)
    latest = now_s * 1000 + _SANE_AHEAD_MS
    new, ignored = [], ""
    for nic in nics:
        known = held.get(nic.device)
        if nic.dry_run or (known is not None and nic.generation <= known.generation):
            continue
        if nic.generation > max(latest, known.generation + _SANE_STEP if known is not None else 0):
            ignored = f"the generation of {nic.device} is from the far future"
            continue
        if known is None:
            # Who names NICs that this host does not have must not keep out those that it has.
            if room <= -MAX_NICS or (room <= 0 and has_not(nic.device)):
                ignored = f"{nic.device} is one more NIC than any host has"
                continue
            room -= 1
        new.append(nic)
    return new, ignored


def reported(held: Mapping[str, DesiredNic], has_not: Callable[[str], bool]) -> dict[str, HeldNic]:
    """What a report says of it: all, and of more than a report may have those first that the host has."""
    nics = list(held.values())
    if len(nics) > MAX_NICS:
        nics.sort(key=lambda nic: has_not(nic.device))
    return {
        nic.device: HeldNic(nic.desired, nic.generation)
        for nic in nics[:MAX_NICS]
        if nic.generation <= MAX_HELD_GENERATION
    }
