"""Real sidecars and real coordinators on a fleet whose truth is known: what may die, and what that costs."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest
import trustme
from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import HOSTS, Daemons, Watch, all_have, disagreement
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockStatus

SYNCHRONIZED = ClockStatus.SYNCHRONIZED


def synchronize(fleet: SyntheticFleet, daemons: Daemons, *coordinators: str) -> Watch:
    """Starts all sidecars and waits until they agree."""
    for host in HOSTS:
        daemons.sidecar(host, *coordinators)
    wait_for(lambda: all_have(fleet, HOSTS, SYNCHRONIZED), 15, "all synchronized")
    wait_for(lambda: disagreement(fleet, HOSTS)[0] < 1_000, 6, "agreement within 1 us")
    return Watch(fleet)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SyntheticFleet, Daemons]]:
    """Four sidecars and a coordinator, for all tests that leave them as they were; they must end in order."""
    place = tmp_path_factory.mktemp("fleet")
    fleet = SyntheticFleet(place, HOSTS)
    fleet.start()
    daemons = Daemons(place, fleet)
    daemons.settings = ["http_client: {timeout_s: 1.0}"]
    daemons.coordinator()
    for host in HOSTS:
        daemons.sidecar(host)
    yield fleet, daemons
    daemons.stop()
    fleet.stop()


@pytest.fixture
def shared(running: tuple[SyntheticFleet, Daemons]) -> tuple[SyntheticFleet, Daemons, Watch]:
    """That fleet, whole and in agreement, whatever a test before has left."""
    fleet, daemons = running
    for link in fleet.links:
        link.up = True
    for name in ("coordinator", *HOSTS):
        if name in daemons.running and daemons.running[name].poll() is None:
            daemons.signal(name, signal.SIGCONT)
        elif name == "coordinator":
            daemons.coordinator()
        else:
            daemons.sidecar(name)
    wait_for(lambda: all_have(fleet, HOSTS, SYNCHRONIZED), 15, "all synchronized")
    wait_for(lambda: disagreement(fleet, HOSTS)[0] < 1_000, 6, "agreement within 1 us")
    return fleet, daemons, Watch(fleet)


def reporting(daemons: Daemons, hosts: list[str] = HOSTS) -> bool:
    """All of `hosts` have a coordinator."""
    return all(daemons.metrics(host)["fabricpulse_clock_coordinator_up"] == 1 for host in hosts)


def test_fleet_agrees_and_survives_kills(shared: tuple[SyntheticFleet, Daemons, Watch]) -> None:
    """Four hosts with clocks seconds and 100 ppm apart agree within 1 us, whoever is killed."""
    fleet, daemons, watch = shared
    watch.run(3, 1_000)
    metrics = daemons.metrics("h1")
    assert metrics["fabricpulse_clock_synchronized"] == 1
    assert 0 < metrics["fabricpulse_clock_error_bound_seconds"] < 20e-6
    assert abs(metrics["fabricpulse_clock_frequency_ratio"] - 1) < 200e-6

    daemons.kill("h2")
    watch.run(1, 5_000)
    daemons.sidecar("h2")
    daemons.kill("coordinator")
    # Alone they ask their neighbours, and stay together; the one that has just started is not as good at once.
    watch.run(6, 10_000)
    watch.until(lambda: all_have(fleet, HOSTS, SYNCHRONIZED), 20, "all are synchronized by their neighbours")
    daemons.coordinator()
    watch.until(lambda: reporting(daemons), 20, "all report to the new coordinator")
    assert all_have(fleet, HOSTS, SYNCHRONIZED)
    watch.run(2, 2_000)


def test_each_edge_is_reported_once(shared: tuple[SyntheticFleet, Daemons, Watch]) -> None:
    """Six edges between four hosts: after the start six are reported, not twelve, and every host still follows."""
    fleet, daemons, watch = shared

    def reported() -> int:
        document = json.loads(daemons.get(f"{daemons.url()}/api/v1/clocksync/status"))
        return sum(member["reported_edges"] for member in document["members"])

    watch.until(lambda: reported() == 6, 12, "each edge once")
    watch.run(3, 1_000)
    assert all_have(fleet, HOSTS, SYNCHRONIZED)


def datagrams(daemons: Daemons, outcome: str) -> float:
    """Of the coordinator; 0 while it starts."""
    try:
        now = daemons.metrics("coordinator")
    except OSError:
        return 0.0
    return now[f'fabricpulse_clocksync_datagrams_total{{outcome="{outcome}"}}']


def test_reports_go_as_datagrams_and_come_back_after_a_restart(
    fleet: SyntheticFleet, daemons: Daemons
) -> None:
    """All of them are taken and answered; one whose sidecar is set not to stays with HTTP, in the same fleet. A new
    coordinator is joined by HTTP, and then gets datagrams too."""
    daemons.coordinator()
    daemons.sidecar("h3", settings=["datagrams: false"])
    for host in HOSTS[:3]:
        daemons.sidecar(host)
    wait_for(lambda: all_have(fleet, HOSTS, SYNCHRONIZED), 15, "all synchronized")
    wait_for(lambda: disagreement(fleet, HOSTS)[0] < 1_000, 6, "agreement within 1 us")
    watch = Watch(fleet)
    watch.until(lambda: datagrams(daemons, "answered") >= 12, 12, "twelve reports by datagram")
    document = json.loads(daemons.get(f"{daemons.url()}/api/v1/clocksync/status"))
    assert [member["host"] for member in document["members"]] == HOSTS
    for outcome in ("malformed", "forged", "replayed", "unsendable", "overflowed"):
        assert datagrams(daemons, outcome) == 0
    daemons.kill("coordinator")
    daemons.coordinator()
    watch.until(lambda: datagrams(daemons, "answered") >= 6, 12, "datagrams to the new coordinator")
    watch.until(lambda: all_have(fleet, HOSTS, SYNCHRONIZED), 6, "synchronized again")


def test_a_coordinator_dies_in_the_middle_of_a_round_and_the_second_takes_over(
    fleet: SyntheticFleet, daemons: Daemons
) -> None:
    """Frozen with the reports of a step in its hands, then killed: the timeline goes on with the other, no jump."""
    daemons.coordinator("first")
    daemons.coordinator("second")
    watch = synchronize(fleet, daemons, "first", "second")
    daemons.signal("first", signal.SIGSTOP)
    # Every sidecar's report is under way: it has been sent, and nobody answers.
    watch.run(1.5, 2_000)
    daemons.kill("first")
    watch.until(lambda: reporting(daemons), 10, "all report to the second")
    wait_for(lambda: all_have(fleet, HOSTS, SYNCHRONIZED), 6, "all synchronized by the second")
    watch.run(3, 2_000)
    document = json.loads(daemons.get(f"{daemons.url('second')}/api/v1/clocksync/status"))
    assert {member["host"] for member in document["members"]} == set(HOSTS)


def test_hosts_that_reach_different_coordinators_keep_one_timeline(
    fleet: SyntheticFleet, daemons: Daemons
) -> None:
    """One host reaches only the first coordinator and one only the second: still one fleet, and the bounds hold."""
    daemons.coordinator("first")
    daemons.coordinator("second")
    daemons.sidecar("h0", "first")
    daemons.sidecar("h1", "first", "second")
    daemons.sidecar("h2", "first", "second")
    daemons.sidecar("h3", "second")
    wait_for(lambda: all_have(fleet, HOSTS, SYNCHRONIZED), 20, "all synchronized")
    wait_for(lambda: disagreement(fleet, HOSTS)[0] < 1_000, 6, "agreement within 1 us")
    watch = Watch(fleet)
    watch.run(6, 2_000)
    # Without those that tie the two together, neither has the whole fleet any more.
    daemons.kill("first")
    watch.run(6, 10_000)
    assert all_have(fleet, HOSTS, SYNCHRONIZED)


def test_a_coordinator_that_is_cut_off_and_comes_back(shared: tuple[SyntheticFleet, Daemons, Watch]) -> None:
    """It takes connections and never answers; sidecars go on by their neighbours, and with it when it is back."""
    fleet, daemons, watch = shared
    daemons.signal("coordinator", signal.SIGSTOP)
    watch.until(
        lambda: not any(daemons.metrics(host)["fabricpulse_clock_coordinator_up"] for host in HOSTS),
        10,
        "all notice",
    )
    watch.run(6, 5_000)
    # Not at each moment: on a machine that is late a neighbour may miss one round.
    watch.until(lambda: all_have(fleet, HOSTS, SYNCHRONIZED), 6, "neighbours keep them synchronized")
    daemons.signal("coordinator", signal.SIGCONT)
    watch.until(lambda: reporting(daemons), 10, "all report again")
    watch.run(3, 2_000)


def test_a_partition_of_the_network_and_its_healing(shared: tuple[SyntheticFleet, Daemons, Watch]) -> None:
    """No probe crosses from h0, h1 to h2, h3 for 6 s: each half stays together, all bounds hold, both heal."""
    fleet, _, watch = shared
    cut = [link for link in fleet.links if (link.a in HOSTS[:2]) != (link.b in HOSTS[:2])]
    for link in cut:
        link.up = False
    watch.run(6, 20_000)
    for half in (HOSTS[:2], HOSTS[2:]):
        assert disagreement(fleet, half)[0] < 2_000
    for link in cut:
        link.up = True
    watch.until(lambda: disagreement(fleet, HOSTS)[0] < 1_000, 10, "both halves agree again")
    wait_for(lambda: all_have(fleet, HOSTS, SYNCHRONIZED), 6, "all synchronized again")
    watch.run(2, 2_000)


@pytest.mark.parametrize("kind", ["token", "password"])
def test_tls_and_who_may_report(fleet: SyntheticFleet, daemons: Daemons, tmp_path: Path, kind: str) -> None:
    """Over TLS with the right token or password: synchronized. With a wrong one: refused, and the log says why."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    web = ["tls_server_config: {cert_file: cert.pem, key_file: cert.pem}"]
    for name in ("right", "wrong"):
        (tmp_path / f"{name}.secret").write_text(f"{name}-not-the-password\n")
    if kind == "password":
        hashed = bcrypt.hashpw(b"right-not-the-password", bcrypt.gensalt(4)).decode()
        web.append(f"basic_auth_users: {{sidecar: '{hashed}'}}")
    else:
        config = tmp_path / "coordinator.yaml"
        config.write_text(f"token_file: {tmp_path}/right.secret\n")
        daemons.coordinator_arguments = ["--config", str(config)]
    (tmp_path / "web.yml").write_text("\n".join(web) + "\n")
    daemons.coordinator_arguments += ["--web.config.file", str(tmp_path / "web.yml")]
    daemons.scheme = "https"

    def client(name: str) -> list[str]:
        file = f"{tmp_path}/{name}.secret"
        shown = (
            f"token_file: {file}"
            if kind == "token"
            else f"basic_auth: {{username: sidecar, password_file: {file}}}"
        )
        return [f"http_client: {{tls_config: {{ca_file: {tmp_path}/ca.pem}}, {shown}}}"]

    daemons.coordinator()
    daemons.settings = client("right")
    for host in HOSTS[:3]:
        daemons.sidecar(host)
    daemons.sidecar(HOSTS[3], settings=client("wrong"))
    wait_for(lambda: all_have(fleet, HOSTS[:3], SYNCHRONIZED), 15, "three synchronized")
    wait_for(lambda: disagreement(fleet, HOSTS[:3])[0] < 1_000, 6, "agreement within 1 us")
    refused = 'fabricpulse_clock_report_errors_total{reason="status"}'
    wait_for(lambda: daemons.metrics(HOSTS[3])[refused] > 0, 5, "the wrong one is refused")
    assert daemons.metrics(HOSTS[3])["fabricpulse_clock_coordinator_up"] == 0
    log = daemons.log(HOSTS[3])
    assert "report not taken" in log
    assert "401" in log
    assert "not-the-password" not in log
    assert "insecure" not in log
