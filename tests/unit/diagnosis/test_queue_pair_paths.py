"""Which queue pairs of jobs cross a suspect, on the coordinator."""

import pytest

from fabricpulse.diagnosis.daemon.queue_pairs import QueuePairPaths, crossing_document
from fabricpulse.diagnosis.daemon.service import DiagnosisService
from fabricpulse.diagnosis.daemon.worker_messages import Declared
from fabricpulse.diagnosis.wire.messages import PROTOCOL, EvidenceReport, check_queue_pairs
from fabricpulse.diagnosis.wire.queue_pairs import QueuePairPath


def path(port, hops, peer="h2", workloads=("train-7",), numbers=(1,), device="e0"):
    return QueuePairPath(device, peer, "e0", port, numbers, workloads, hops)


def ports(paths, kind, component, peer="", addresses=None):
    found = paths.crossing(kind, component, peer, addresses or {})
    assert found.paths == len(found.named)
    return [one.port for _, one in found.named]


@pytest.fixture
def paths():
    """h1 sends by two spines to h2 and h3, which share a leaf; h2 sends back by one of them."""
    found = QueuePairPaths({}, {})
    found.take(
        "h1",
        [
            path(1, ("l1", "s1", "l2")),
            path(2, ("l1", "s2", "l2")),
            path(3, ("l1", "", "l2"), "h3", ("train-8",)),
            path(4, ("l1", "s2", "l2"), "h3", device="e1"),
        ],
    )
    found.take("h2", [path(5, ("l2", "s1", "l1"), "h1")])
    return found


@pytest.mark.parametrize(
    ("suspect", "crosses"),
    [
        (("link", "l1", "s1"), [1]),
        (("link", "s1", "l1"), [5]),  # the other direction of the same cable
        (("link", "l1", "s3"), []),
        (("switch", "s1"), [1, 5]),
        (("switch", "l2"), [1, 2, 3, 4, 5]),
        (("nic", "h1/e0"), [1, 2, 3, 5]),
        (("nic_tx", "h1/e0"), [1, 2, 3]),
        (("nic_rx", "h1/e0"), [5]),
        (("nic", "h1/e1"), [4]),
        (("host", "h1"), [1, 2, 3, 4, 5]),
        (("pair", "h1/e0", "h2/e0"), [1, 2]),
        (("switch", "nobody"), []),
    ],
)
def test_who_crosses_it(paths, suspect, crosses):
    """In the direction of a link; a hop that does not answer is at no switch."""
    assert sorted(ports(paths, *suspect)) == crosses


def test_jobs_are_named(paths):
    """As the API has it: each job once, each path with its host."""
    document = crossing_document(paths.crossing("switch", "l1", "", {}))
    assert (document["paths"], document["jobs"]) == (5, ("train-7", "train-8"))
    assert document["named"][0] == {
        "host": "h1",
        "device": "e0",
        "peer": "h2",
        "peer_device": "e0",
        "source_port": 1,
        "queue_pairs": (1,),
        "jobs": ("train-7",),
    }


def test_a_host_reports_what_changes_and_with_its_edges_all():
    """The worker gets none of it; a host that was restarted has only what it tells since."""
    service = DiagnosisService(Declared({}, {}), lambda _: True)
    put = []
    service.process.put = lambda report: put.append(report.report) or True

    def tell(*paths, edges=None):
        rates = (150.0, 0.0)
        report = EvidenceReport(PROTOCOL, "h1", 1, 1, *rates, b"", edges=edges, queue_pairs=paths)
        reply = service.reply(report, 1.0)
        assert not reply.needs_edges
        return reply.refused_queue_pairs

    first, other = path(0xC001, ("l1", "s1", "l2")), path(0xC002, ("l1", "s2", "l2"))
    tell(first, edges=())
    tell(other)
    tell()
    assert len(service.queue_pairs) == 2
    assert all(report.queue_pairs == () for report in put)
    tell(other, edges=())
    assert len(service.queue_pairs) == 1
    with pytest.raises(ValueError, match="source port"):
        tell(path(9620, ("l1",)))
    service.queue_pairs = QueuePairPaths({}, {}, most=4)
    assert tell(*(path(0xC000 + number, ("l1",)) for number in range(5)), edges=()) == (3, 4)
    assert tell(path(0xC000, ("l1",), numbers=()), path(0xC003, ("l1",))) == ()


def test_names_of_switches():
    """Those that are declared, a leaf that stands in for what answers, and those that DNS has given since."""
    paths = QueuePairPaths({"h1/e0": "leaf-a", "h2/e0": "leaf-b"}, {"10.0.0.9": "spine-9"})
    paths.take("h1", [path(1, ("10.0.0.1", "10.0.0.9", "10.0.0.3")), path(2, ("10.0.0.1", "10.0.0.8"))])
    assert ports(paths, "link", "leaf-a", "spine-9") == [1]
    assert ports(paths, "link", "10.0.0.3", "leaf-b") == [1]
    assert ports(paths, "link", "10.0.0.8", "leaf-b") == [2]
    assert ports(paths, "link", "leaf-a", "spine-8", {"spine-8": {"10.0.0.7", "10.0.0.8"}}) == [2]
    assert ports(paths, "switch", "spine-8", addresses={"spine-8": {"10.0.0.8"}}) == [2]


def test_what_is_no_more_is_forgotten(paths):
    """A queue pair that is closed, one on another path, a host that is gone: nothing of them is left."""
    paths.take("h1", [path(1, ("l1", "s1", "l2"), numbers=()), path(2, ("l1", "s1", "l2"))])
    assert sorted(ports(paths, "switch", "s1")) == [2, 5]
    assert ports(paths, "switch", "s2") == [4]
    paths.keep(["h2"])
    assert sorted(ports(paths, "switch", "l1")) == [5]
    paths.forget("h2")
    assert vars(paths) == vars(QueuePairPaths({}, {}))


@pytest.mark.parametrize("hops", [("",), ("", ""), ("l1", ""), ("", "l2"), ("l1", "", "l2")])
@pytest.mark.parametrize("device", ["e0", "e/0", ""])
def test_nothing_is_left_of_a_path_that_has_few_links_or_none(hops, device):
    """Switches that do not answer, and names that no host has: anybody may report them, again and again."""
    paths = QueuePairPaths({}, {})
    paths.take("h1", [path(1, hops, device=device), path(2, hops, "h1", device=device)])
    paths.forget("h1")
    assert vars(paths) == vars(QueuePairPaths({}, {}))


def test_an_answer_is_computed_again_when_paths_or_names_change(paths):
    """The page asks every five seconds; nothing has changed then, mostly."""
    names: dict[str, set[str]] = {}

    def crossing(names):
        return paths.crossing("switch", "s2", "", names)

    first = crossing(names)
    paths.take("h1", [path(2, ("l1", "s2", "l2"))])
    assert crossing(names) is first
    paths.take("h1", [path(2, ("l1", "s1", "l2"))])
    assert (first.paths, crossing(names).paths) == (2, 1)
    paths.forget("h1")
    assert crossing(names).paths == 0
    assert crossing({"s2": {"s1"}}).paths == 1


def test_so_many_are_kept_and_no_more():
    """A host that reports beyond it takes no place from others, and what it no longer has makes room."""
    paths = QueuePairPaths({}, {}, most=8)
    paths.take("h1", [path(number, ("l1",)) for number in range(12)])
    assert (len(paths), paths.refused) == (6, 6)
    for host in ("h2", "h3", "h4"):
        paths.take(host, [path(20, ("l1",)), path(21, ("l1",)), path(22, ("l1",))])
    assert (len(paths), paths.refused) == (8, 13)
    assert {host for host, _ in paths.crossing("switch", "l1", "", {}).named} == {"h1", "h2"}
    paths.take("h1", [path(0, (), numbers=()), path(1, (), numbers=())])
    paths.take("h3", [path(20, ("l1",))])
    assert len(paths) == 7


@pytest.mark.parametrize(
    "wrong",
    [
        path(9620, ("l1",)),
        path(0x10000, ("l1",)),
        path(0xC000, ()),
        path(0xC000, ("", "")),
        path(0xC000, ("l1",) * 9),
        path(0xC000, ("l" * 46,)),
        path(0xC000, ("l1",), numbers=(1 << 24,)),
        path(0xC000, ("l1",), numbers=(1,) * 9),
        path(0xC000, ("l1",), workloads=("w" * 65,)),
        path(0xC000, ("l1",), workloads=("w",) * 5),
        path(0xC000, ("l1",), peer="h" * 96),
    ],
)
def test_what_no_exporter_sends_is_refused(wrong):
    check_queue_pairs((path(0xC000, ("l1",)),))
    with pytest.raises(ValueError, match=r"port|path|queue pair|job|name"):
        check_queue_pairs((wrong,))
