"""Where the membership comes from."""

import json
import socket
import ssl
import threading

import pytest
import trustme
from aiohttp import web

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.mesh import membership_source
from fabricpulse.mesh.config import MembershipSource
from fabricpulse.mesh.fleet_view import view_of
from fabricpulse.mesh.membership_source import MembershipReader

FLEET = """
hosts:
  - {name: a, nics: [{device: r0, address: 10.0.0.1, network: n0}, {device: r1, address: "fd00::1", network: n0}]}
  - {name: b, nics: [{device: r0, address: 10.0.0.2, network: n0}]}
"""


async def hosts_of(reader):
    """The hosts that the reader reads; it must read something."""
    membership = await reader.read()
    assert membership is not None
    return membership.hosts


async def test_file_is_read_only_when_it_has_changed(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    reader = MembershipReader(MembershipSource(file=str(path)))
    assert [h.name for h in await hosts_of(reader)] == ["a", "b"]
    assert await reader.read() is None
    path.write_text("hosts: [")
    with pytest.raises(ConfigError):
        await reader.read()
    with pytest.raises(ConfigError):  # and again: a bad file is not taken for an unchanged one
        await reader.read()
    for text in ("", "# soon\n"):  # an editor has cut it and not yet written
        path.write_text(text)
        with pytest.raises(ConfigError, match="hosts"):
            await reader.read()
    path.write_text("hosts: []")
    with pytest.raises(ConfigError, match="there is no host in it"):
        await reader.read()


async def test_url_with_etag():
    """The coordinator's answer is taken once; 304 means unchanged; an error names the URL."""
    requests = []

    async def serve(request):
        requests.append(request.headers.get("If-None-Match"))
        if len(requests) == 3:
            return web.Response(status=500)
        if requests[-1] == '"v1"':
            return web.Response(status=304)
        return web.Response(text=FLEET, headers={"ETag": '"v1"'})

    app = web.Application()
    app.router.add_get("/membership", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/membership"
    reader = MembershipReader(MembershipSource(url=url))
    assert len(await hosts_of(reader)) == 2
    assert await reader.read() is None
    with pytest.raises(UserError, match="HTTP status 500"):
        await reader.read()
    await runner.cleanup()
    with pytest.raises(UserError, match="cannot read the membership from"):
        await reader.read()
    assert requests == [None, '"v1"', '"v1"']


@pytest.mark.parametrize(
    ("client", "refusal"),
    [
        ({"token_file": "token"}, None),
        ({"basic_auth": {"username": "mesh", "password_file": "password"}}, "HTTP status 401"),
        ({"tls_config": None, "token_file": "token"}, "certificate"),
    ],
)
async def test_url_behind_tls_and_a_token(tmp_path, client, refusal):
    """A coordinator with a private authority: what http_client trusts and shows is used, and a refusal is reported."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "password").write_text("wrong\n")

    async def serve(request):
        if request.headers.get("Authorization") != "Bearer s3cret":
            return web.Response(status=401)
        return web.Response(text=FLEET)

    app = web.Application()
    app.router.add_get("/membership", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    shown = {"tls_config": {"ca_file": "ca.pem"}} | client
    text = json.dumps(shown).replace('_file": "', f'_file": "{tmp_path}/')
    source = MembershipSource(
        url=f"https://localhost:{runner.addresses[0][1]}/membership",
        http_client=parse_config(text, HttpClientConfig, "test"),
    )
    try:
        if refusal is None:
            assert len(await hosts_of(MembershipReader(source))) == 2
        else:
            with pytest.raises(UserError, match=refusal):
                await MembershipReader(source).read()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("charset", ["utf-8", "no-such"])
async def test_url_that_serves_no_text(charset):
    """A picture, a proxy's page: an error to be reported like any other, whatever its headers say of it."""
    app = web.Application()
    headers = {"Content-Type": f"text/html; charset={charset}"}

    async def serve(_):
        return web.Response(body=b"\xff\xfe\x00", headers=headers)

    app.router.add_get("/membership", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/membership"
    with pytest.raises(UserError, match="is not UTF-8 text"):
        await MembershipReader(MembershipSource(url=url)).read()
    await runner.cleanup()


async def test_dns(monkeypatch):
    """Addresses of a name are the members of its network; their reverse names are the hosts."""
    addresses = {"rail0.fleet": ["10.0.0.1", "10.0.0.2"], "rail1.fleet": ["10.1.0.1"]}
    names = {"10.0.0.1": "gpu-1.fleet", "10.0.0.2": "gpu-2.fleet", "10.1.0.1": "gpu-1.rail1.fleet"}

    def getaddrinfo(name, *_args, **_kwargs):
        if name not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (a, 0)) for a in addresses[name]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket, "getnameinfo", lambda address, _flags: (names[address[0]], "0"))
    source = MembershipSource(
        dns={"n0": "rail0.fleet", "n1": "rail1.fleet"}, devices={"n0": "eth1", "n1": "eth2"}
    )
    hosts = await hosts_of(MembershipReader(source))
    assert {h.name: [(n.device, n.address, n.network) for n in h.nics] for h in hosts} == {
        "gpu-1": [("eth1", "10.0.0.1", "n0"), ("eth2", "10.1.0.1", "n1")],
        "gpu-2": [("eth1", "10.0.0.2", "n0")],
    }
    del addresses["rail1.fleet"]
    with pytest.raises(UserError, match=r"rail1\.fleet"):
        await MembershipReader(source).read()


async def test_dns_that_does_not_answer(monkeypatch):
    """The reader gives up long before the resolver, and asks again without taking another thread."""
    lookups, answer = [], threading.Event()

    def getaddrinfo(name, *_args, **_kwargs):
        lookups.append(name)
        answer.wait(60)
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: ("gpu-1.fleet", "0"))
    monkeypatch.setattr(membership_source, "_PATIENCE_S", 0.05)
    reader = MembershipReader(MembershipSource(dns={"n0": "rail0.fleet"}, devices={"n0": "eth1"}))
    for _ in range(2):
        with pytest.raises(UserError, match=r"DNS does not answer for rail0\.fleet within 0\.05 s"):
            await reader.read()
    answer.set()
    monkeypatch.setattr(membership_source, "_PATIENCE_S", 5)
    assert [host.name for host in await hosts_of(reader)] == ["gpu-1"]
    assert lookups == ["rail0.fleet"]


async def test_dns_of_a_name_that_is_none():
    source = MembershipSource(dns={"n0": "rail0..fleet"}, devices={"n0": "eth1"})
    with pytest.raises(UserError, match=r"'rail0\.\.fleet', the members of network n0, is no host name"):
        await MembershipReader(source).read()


@pytest.mark.parametrize("url", ["coordinator:9613", "http://", "http://coordinator:x/membership"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ConfigError, match="is not an http or https URL"):
        parse_config(f"url: '{url}'\n", MembershipSource, "c.yaml")


def test_no_source():
    """Settings that name no membership are refused at the start."""
    with pytest.raises(ConfigError, match="no membership is configured"):
        MembershipReader(MembershipSource())


async def test_edges_only_between_addresses_of_one_family(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    membership = await MembershipReader(MembershipSource(file=str(path))).read()
    assert membership is not None
    view = view_of(membership, "a", 10, 2)
    assert [(p.nic, p.host, p.address) for p in view.peers] == [(0, "b", "10.0.0.2")]
    assert view_of(membership, "stranger", 10, 2).nics == ()
