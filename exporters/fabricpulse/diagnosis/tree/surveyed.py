"""What a computation of the fabric's tree has found, as it goes from process to process. Pure."""

from typing import Any

import msgspec

from fabricpulse.diagnosis.tree.findings import NOTHING, Findings
from fabricpulse.diagnosis.tree.levels import Kind

# NICs at a wrong leaf that the metrics name, at most; all are in the document.
MOST_MISCABLED = 256


class WrongCable(msgspec.Struct, frozen=True, array_like=True):
    """A NIC (host/device) that is at another leaf than it should be. what : wrong_rail, wrong_leaf. leaf : where it is.
    expected : where it belongs.
    """

    nic: str
    what: str
    leaf: str
    expected: str


class Surveyed(msgspec.Struct, frozen=True):
    """at_s : monotonic, when the delays were taken that it is made from. document : `/api/v1/topology`, JSON without
    its age. nics, edges, pairs, placed, unseparated : as there. leaves, pods : groups. temporary, wanted : pairs that
    temporary peers have measured, are to measure next. findings : for the learner. miscabled : the first
    MOST_MISCABLED of `wrong_cables`.
    """

    at_s: float
    document: bytes
    nics: int = 0
    edges: int = 0
    pairs: int = 0
    placed: int = 0
    leaves: int = 0
    pods: int = 0
    unseparated: int = 0
    temporary: int = 0
    wanted: int = 0
    wrong_cables: int = 0
    miscabled: tuple[WrongCable, ...] = ()
    findings: Findings = Findings()


def surveyed(document: dict[str, Any], at_s: float, findings: Findings = NOTHING) -> Surveyed:
    """From a document of `topology_document`."""
    kinds = [group["kind"] for group in document["groups"]]
    wrong = document["miscabled"]
    return Surveyed(
        at_s,
        msgspec.json.encode(document),
        len(document["nics"]),
        document["edges"],
        document["pairs"],
        document["placed"],
        kinds.count(Kind.LEAF),
        kinds.count(Kind.POD),
        document["unseparated"],
        document["temporary_pairs"],
        document["wanted_pairs"],
        len(wrong),
        tuple(
            WrongCable(one["nic"], one["what"], one["leaf"], one["expected"])
            for one in wrong[:MOST_MISCABLED]
        ),
        findings,
    )
