"""A suspected component by its names, as the API, the alert and the metrics give it. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Suspect:
    """A component that is faulty. what : loss, delay or mtu (large packets are dropped). component, peer : names; peer
    only of a link or a pair, the far end. since_s : of evidence. alternatives : what it cannot be distinguished from.
    runner_up : "" if there is none. silent : of most of its flows nothing arrives. leaf : a declared leaf that is dead;
    "" for all else. network : of the NICs whose flows cross a switch or link, where all are of one. pairs : directed
    pairs of NICs that suffer; sufferers : names of some of them.
    """

    what: str
    kind: str
    component: str
    peer: str
    share: float
    confidence: float
    flows: int
    since_s: float
    alternatives: tuple[str, ...]
    runner_up: str
    silent: bool = False
    leaf: str = ""
    pairs: int = 0
    sufferers: tuple[str, ...] = ()
    network: str = ""

    @property
    def text(self) -> str:
        """As others name it among their alternatives."""
        return (
            f"{self.kind} {self.component} to {self.peer}" if self.peer else f"{self.kind} {self.component}"
        )
