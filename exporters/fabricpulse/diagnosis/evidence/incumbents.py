"""What is reported, and what is found that cannot be distinguished from it. Pure."""

from collections.abc import Mapping, Set
from dataclasses import replace

from fabricpulse.diagnosis.evidence.holds import SILENT_HOLD_S
from fabricpulse.diagnosis.search.succession import Key
from fabricpulse.diagnosis.search.suspect import Suspect

Gone = Mapping[Key, tuple[float, Suspect]]
"""What is reported and not found any more: since when there is evidence of it, and what it was."""


def incumbents(gone: Gone, suspect: Suspect) -> Set[Key]:
    """What explains as well what this one does: a name stays until another one is better."""
    return {
        key for key, (_, one) in gone.items() if one.what == suspect.what and one.text in suspect.alternatives
    }


def inherited_s(gone: Gone, suspect: Suspect, now_s: float) -> float:
    """Since when there is evidence of this switch or link: where what was reported said that it may as well be this
    one, since that was found. Which part of a silent host is silent is found again and again, and waited for.
    """
    if suspect.kind in SILENT_HOLD_S:
        return now_s
    heir_of = (s for s, one in gone.values() if one.what == suspect.what and suspect.text in one.alternatives)
    return min(heir_of, default=now_s)


def beside(incumbent: Suspect, other: Suspect) -> Suspect:
    """What is reported, now that it cannot be distinguished from another one that is found."""
    alike = tuple(text for text in (other.text, *other.alternatives) if text != incumbent.text)
    confidence = min(incumbent.confidence, 1 - other.confidence)
    return replace(incumbent, alternatives=alike, confidence=confidence, share=other.share)
