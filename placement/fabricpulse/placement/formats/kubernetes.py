"""Kubernetes: where nodes are and which ranks they take, as labels and annotations. Pure.

Labels are what schedulers select and sort by, so that a value is one word; ranks are an annotation
(https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/).
"""

import shlex
from collections.abc import Iterable, Iterator

from fabricpulse.placement.fabric import Place, by_name
from fabricpulse.placement.formats.names import plain_names
from fabricpulse.placement.formats.ranks import HostRanks, format_ranks
from fabricpulse.placement.places import UNKNOWN

LEAF, POD = "fabricpulse.io/leaf", "fabricpulse.io/fabric-pod"
INDEX, RANKS = "fabricpulse.io/placement-index", "fabricpulse.io/placement-ranks"


def place_lines(places: Iterable[Place]) -> Iterator[str]:
    """Commands for a shell, one a node: its leaf and pod. What is not known loses its label. Raises UserError."""
    places = sorted(places, key=lambda each: by_name(each.host))
    leaves = plain_names(place.leaf() for place in places if place.known)
    pods = plain_names(place.pod() for place in places if _has_pod(place))
    for place in places:
        leaf = f"{LEAF}={leaves[place.leaf()]}" if place.known else f"{LEAF}-"
        pod = f"{POD}={pods[place.pod()]}" if _has_pod(place) else f"{POD}-"
        yield f"kubectl label --overwrite node {shlex.quote(place.host)} {leaf} {pod}"


def order_lines(hosts: list[HostRanks]) -> Iterator[str]:
    """Commands for a shell, two a node: its place in the order as a label that sorts, its ranks as an annotation."""
    width = len(str(len(hosts) - 1))
    for index, each in enumerate(hosts):
        node = shlex.quote(each.place.host)
        yield f"kubectl label --overwrite node {node} {INDEX}={index:0{width}}"
        yield f"kubectl annotate --overwrite node {node} {RANKS}={format_ranks(each.ranks)}"


def _has_pod(place: Place) -> bool:
    return place.known and bool(place.pod()) and not place.pod().startswith(UNKNOWN)
