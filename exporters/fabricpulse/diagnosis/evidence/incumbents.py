"""What is reported, and what is found that cannot be distinguished from it. Pure."""

from collections.abc import Mapping, Set
from dataclasses import replace

from fabricpulse.diagnosis.evidence.holds import SILENT_HOLD_S
from fabricpulse.diagnosis.search.succession import Key
from fabricpulse.diagnosis.search.suspect import Suspect

Gone = Mapping[Key, Suspect]
"""What is reported and not found any more."""


def incumbents(gone: Gone, suspect: Suspect) -> Set[Key]:
    """What explains as well what this one does: a name stays until another one is better."""
    return {key for key, one in gone.items() if one.what == suspect.what and one.text in suspect.alternatives}


def is_heir(gone: Gone, suspect: Suspect) -> bool:
    """Whether what was reported said that it may as well be this switch or link: then this is no rest of it. It is
    waited for as for any other: as a fault ends the last flows look like another one for a moment. Which part of a
    silent host is silent is found again and again.
    """
    if suspect.kind in SILENT_HOLD_S:
        return False
    return any(one.what == suspect.what and suspect.text in one.alternatives for one in gone.values())


def beside(incumbent: Suspect, other: Suspect) -> Suspect:
    """What is reported, now that it cannot be distinguished from another one that is found."""
    alike = tuple(text for text in (other.text, *other.alternatives) if text != incumbent.text)
    confidence = min(incumbent.confidence, 1 - other.confidence)
    return replace(incumbent, alternatives=alike, confidence=confidence, share=other.share)
