"""Which root a host names, of those that its coordinators go on with."""

from fabricpulse.clocksync.sidecar.coordinator_selection import CoordinatorHealth, NamedQuorum
from fabricpulse.clocksync.wire.limits import MAX_ROUND_S, NAMED_S
from fabricpulse.clocksync.wire.messages import Line, Quorum, RoundReply
from fabricpulse.clocksync.wire.quorums import merge_quorums


def reply(moment_s: int, root: str, hosts: int = 3) -> RoundReply:
    quorum = Quorum(moment_s, hosts, root, anchored=False)
    return RoundReply(1, Line(0, 0, 0, 0), root, False, b"", "", None, 1, quorum)


class Word:
    """What a host with two coordinators says."""

    def __init__(self) -> None:
        self.healths = [CoordinatorHealth(), CoordinatorHealth()]
        self.named = NamedQuorum()

    def take(self, number: int, now_s: float, quorum_reply: RoundReply) -> str:
        """The root that it names then."""
        self.healths[number].answered(quorum_reply, now_s)
        self.named.take(self.healths, now_s)
        assert self.named.quorum is not None
        return self.named.quorum.root


def test_it_keeps_to_a_root_for_as_long_as_its_word_for_it_may_count() -> None:
    """Moments are whole seconds: one of 100 may be of 100.99, and count until just before 106."""
    word = Word()
    assert word.take(0, 0.99, reply(100, "a")) == "a"
    named = [word.take(1, now_s, reply(100 + int(now_s), "b")) for now_s in (2.0, 4.0, 6.9, 7.1)]
    assert named == ["a", "a", "a", "b"]
    assert 0.99 + NAMED_S + 1 < 7.1


def test_a_coordinator_that_goes_on_with_its_root_keeps_it() -> None:
    word = Word()
    for second in range(0, 60, int(MAX_ROUND_S)):
        assert word.take(0, second, reply(100 + second, "a")) == "a"
        assert word.take(1, second, reply(101 + second, "b")) == "a"


def test_a_moment_in_the_future_is_not_the_last_for_ever() -> None:
    """A coordinator was wrong, or the host has come from another fleet."""
    for root in ("a", "b"):
        word = Word()
        word.take(0, 0.0, reply(10_000, "a"))
        for second in range(1, 12):
            word.take(1, second, reply(100 + second, root))
        assert word.named.quorum == Quorum(111, 3, root, anchored=False)


def test_a_coordinator_that_is_gone_offers_no_root() -> None:
    """Its last word would count nowhere, and be kept for seconds."""
    word = Word()
    word.take(0, 0.0, reply(100, "a"))
    word.take(1, 0.5, reply(101, "b"))
    assert word.take(0, 20.0, reply(100, "a")) == "a"


def test_two_roots_of_one_round_are_no_half() -> None:
    """Neither has counted with as many as the other's hosts."""
    of_one, of_two = (
        merge_quorums([Quorum(100, 4, "a", anchored=False), Quorum(101, 2, root, anchored=False)])
        for root in ("a", "b")
    )
    assert of_one is not None
    assert of_two is not None
    assert (of_one.hosts, of_two.hosts) == (4, 5)
