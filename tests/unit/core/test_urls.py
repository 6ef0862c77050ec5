"""URLs of settings: the one check that all of them go through."""

import pytest

from fabricpulse.core.web.urls import check_base_url, check_url, host_and_port, join_host_port

GOOD = {
    "http://monitor": ("monitor", 80),
    "https://monitor": ("monitor", 443),
    "http://monitor:9614": ("monitor", 9614),
    "http://monitor:9614/": ("monitor", 9614),
    "https://monitor.example/fabricpulse": ("monitor.example", 443),
    "http://10.0.0.1:9614": ("10.0.0.1", 9614),
    "http://[::1]:9614": ("::1", 9614),
    "https://[fd00::1]": ("fd00::1", 443),
    "http://[fe80::1%25eth0]:9614": ("fe80::1%25eth0", 9614),
    "http://user:secret@monitor:9614": ("monitor", 9614),
}


@pytest.mark.parametrize("url", GOOD)
def test_accepted(url: str) -> None:
    """Host and port of each, the scheme's port where none is given."""
    check_base_url("url", url)

    assert host_and_port(url) == GOOD[url]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "neither http:// nor https://"),
        ("node2:9613", "neither http:// nor https://"),
        ("ftp://node2", "neither http:// nor https://"),
        ("http://", "no host"),
        ("http://:9613", "no host"),
        ("http://[::1:9614", "ipv6"),
        ("http://[::1]x:80", "none|invalid IPv6"),
        ("http://[1:2]:80", "IPv6 address"),
        ("http://::1:9614", "port"),
        ("http://node:port", "port"),
        ("http://node:70000", "port"),
        ("http://node:0", "port 0"),
        ("http://node :9614", "blank"),
        (" http://node:9614", "neither|blank"),
        ("http://node:9614\n", "blank|neither"),
        ("http://node:9614/a b", "blank"),
    ],
)
def test_refused(url: str, why: str) -> None:
    """The sentence names the setting, the value and what is wrong with it."""
    with pytest.raises(
        ValueError, match=rf"(?i)^coordinator .* is not an http or https URL, .*({why})"
    ) as caught:
        check_url("coordinator", url)

    assert repr(url) in str(caught.value)


@pytest.mark.parametrize("url", ["http://node:9614?a=b", "http://node:9614/x#y"])
def test_paths_are_added_to_a_base(url: str) -> None:
    """What would swallow the path that is added is refused, where one is."""
    check_url("url", url)
    with pytest.raises(ValueError, match="must end with its path"):
        check_base_url("url", url)


@pytest.mark.parametrize(
    ("host", "target"),
    [("gpu-001", "gpu-001:9613"), ("10.0.0.1", "10.0.0.1:9613"), ("fd00::1", "[fd00::1]:9613")],
)
def test_target(host: str, target: str) -> None:
    """As Prometheus wants its targets."""
    assert join_host_port(host, 9613) == target
