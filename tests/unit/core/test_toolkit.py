"""Files of the Prometheus exporter toolkit have the same effect here, or a log line names the setting that has not."""

import asyncio
import ssl
import time
from pathlib import Path

import aiohttp
import bcrypt
import pytest
import trustme
from tests.fixtures.web.credentials import basic
from tests.unit.core.web_serving import client_context, get_with, hash_of, serving

from fabricpulse.core.config import parse_config
from fabricpulse.core.web.authentication import TokenBucket, basic_credentials
from fabricpulse.core.web.passwords import PasswordChecker, TooManyChecksError
from fabricpulse.core.web.toolkit import WebConfig
from fabricpulse.core.web.toolkit_file import CIPHERS, RateLimit, WebFile

# Contents of web/testdata/*.good.yml of github.com/prometheus/exporter-toolkit (19a7c2d).
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
GOOD = {
    "empty": "",
    "nulls": "tls_server_config:\nhttp_server_config:\nbasic_auth_users:\n",
    "noAuth": TLS + '  client_auth_type: "VerifyClientCertIfGiven"\n',
    "allCiphers": TLS
    + "  cipher_suites:\n"
    + "".join(
        f"  - {name}\n" for name in [*CIPHERS, "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"]
    ),
    "someCiphers_noOrder": TLS
    + "  cipher_suites:\n  - TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384\n  - TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\n"
    "  prefer_server_cipher_suites: false\n  min_version: TLS12\n  max_version: TLS12\n",
    "allCurves": TLS + "  curve_preferences: [CurveP256, CurveP384, CurveP521, X25519]\n",
    "someCurves": TLS + "  min_version: TLS13\n  curve_preferences:\n  - CurveP521\n",
    "requireanyclientcert": TLS + '  client_auth_type: "RequireAnyClientCert"\n',
    "requireandverify": TLS + '  client_auth_type: "RequireAndVerifyClientCert"\n  client_ca_file: "ca.pem"\n'
    '  client_allowed_sans: ["one", "test3", "two"]\n',
    "noHTTP2": TLS + "http_server_config:\n  http2: false\n",
    "headers": "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"
    "    Strict-Transport-Security: max-age=31536000; includeSubDomains\n    X-Content-Type-Options: nosniff\n"
    "    X-XSS-Protection: 1\n    Content-Security-Policy: \"default-src 'self' *.test.example.net\"\n",
    "rate_limiter_nonblocking": "rate_limit:\n  interval: 0\n  burst: 0\n",
    "rate_limiter_one_second": 'rate_limit:\n  interval: "1s"\n  burst: 0\n',
    "users": TLS
    + "basic_auth_users:\n  alice: $2y$12$1DpfPeqF9HzHJt.EWswy1exHluGfbhnn3yXhR7Xes6m3WJqFg0Wby\n",
}
NOT_HONOURED = {"allCurves": "curve_preferences", "requireanyclientcert": "RequireAnyClientCert"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def folder(tmp_path: Path, authority: trustme.CA) -> Path:
    leaf = authority.issue_cert("127.0.0.1")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
    leaf.private_key_pem.write_to_path(tmp_path / "server.key")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path


@pytest.mark.parametrize("name", GOOD)
def test_good_files_of_the_toolkit(folder: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each is accepted; what it asks for and does not get is named when it is read."""
    (folder / "web.yml").write_text(GOOD[name])
    config = WebConfig.load(folder / "web.yml")

    logged = [vars(record)["fields"]["setting"] for record in caplog.records]
    assert len(logged) == (name in NOT_HONOURED)
    assert all(NOT_HONOURED[name] in sentence for sentence in logged)
    assert (config.ssl_context() is not None) == GOOD[name].startswith(TLS)


def indented(pem: bytes) -> str:
    return "".join(f"    {line}\n" for line in pem.decode().splitlines())


async def test_inline_certificates(tmp_path: Path, authority: trustme.CA) -> None:
    """cert, key and client_ca may stand in the file itself."""
    leaf = authority.issue_cert("127.0.0.1")
    path = tmp_path / "web.yml"
    path.write_text(
        f"tls_server_config:\n  cert: |\n{indented(leaf.cert_chain_pems[0].bytes())}"
        f"  key: |\n{indented(leaf.private_key_pem.bytes())}"
        f"  client_ca: |\n{indented(authority.cert_pem.bytes())}"
        "  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: ['::1', a.example]\n"
    )
    async with serving(path) as address:
        for name, status in (("::1", 200), ("a.example", 200), ("b.example", 403)):
            assert await get_with(address, client_context(authority, authority.issue_cert(name))) == status
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await get_with(address, client_context(authority))


@pytest.mark.parametrize("auth", ["RequireAnyClientCert", "RequireClientCert"])
async def test_any_certificate_with_authorities(folder: Path, authority: trustme.CA, auth: str) -> None:
    """Where authorities are named, a certificate of theirs is asked for: stricter than the toolkit, never laxer."""
    path = folder / "web.yml"
    path.write_text(TLS + f"  client_auth_type: {auth}\n  client_ca_file: ca.pem\n")
    async with serving(path) as address:
        assert await get_with(address, client_context(authority, authority.issue_cert("a"))) == 200
        for context in (
            client_context(authority),
            client_context(authority, trustme.CA().issue_cert("a")),
        ):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await get_with(address, context)


async def test_ciphers_and_curves(folder: Path, authority: trustme.CA) -> None:
    """Only the suites that are listed are offered for TLS 1.2; one curve is enforced; only TLS 1.3's mean TLS 1.3."""
    path = folder / "web.yml"

    async def negotiated(settings: str, **client: object) -> tuple[str, str]:
        path.write_text(TLS + settings)
        async with serving(path) as address:
            context = client_context(authority)
            for name, value in client.items():
                if name == "curve":
                    context.set_ecdh_curve(str(value))
                else:
                    setattr(context, name, value)
            host, _, port = address.partition(":")
            _, writer = await asyncio.open_connection(host, int(port), ssl=context)
            cipher = writer.get_extra_info("cipher")
            writer.close()
            return cipher[0], cipher[1]

    only = (
        "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]\n"
    )
    tls12 = {"maximum_version": ssl.TLSVersion.TLSv1_2}
    assert (await negotiated(only, **tls12))[0] in (
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
    )
    assert (await negotiated(only))[1] == "TLSv1.3"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await negotiated("  cipher_suites: [TLS_AES_128_GCM_SHA256]\n", **tls12)
    assert await negotiated("  curve_preferences: [CurveP521]\n", curve="secp521r1")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await negotiated("  curve_preferences: [CurveP521]\n", curve="X25519")


async def test_numeric_header_values(tmp_path: Path) -> None:
    """`X-XSS-Protection: 0` is a number to YAML; an empty value unsets the header."""
    path = tmp_path / "web.yml"
    path.write_text(
        "http_server_config: {headers: {X-XSS-Protection: 0, X-A: 1.5, X-B: true, X-Frame-Options: ''}}"
    )
    async with (
        serving(path) as address,
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/metrics") as response,
    ):
        assert response.headers["X-XSS-Protection"] == "0"
        assert response.headers["X-A"] == "1.5"
        assert response.headers["X-B"] == "true"
        assert "X-Frame-Options" not in response.headers


async def test_rate_limit(tmp_path: Path) -> None:
    """More requests than the bucket has tokens are answered 429."""
    path = tmp_path / "web.yml"
    path.write_text("rate_limit: {interval: 1h, burst: 3}")
    async with serving(path) as address, aiohttp.ClientSession() as session:
        statuses = []
        for _ in range(5):
            async with session.get(f"http://{address}/metrics") as response:
                statuses.append(response.status)
    assert statuses == [200, 200, 200, 429, 429]


def test_token_bucket() -> None:
    """One token an interval, at most `burst`; a change of the limit counts at once; 0 is no limit."""
    bucket = TokenBucket(0.0)
    limit = RateLimit(interval="500ms", burst=2)
    assert [bucket.take(limit, now) for now in (0, 0, 0, 0.4, 0.6, 100, 100, 100)] == [
        *(True, True, False, False, True),
        *(True, True, False),
    ]
    assert bucket.take(RateLimit(), 100)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("1m30s", 90), ("100ms", 0.1), ("0", 0), ("''", 0), ("1500000000", 1.5)]
)
def test_intervals(text: str, seconds: float) -> None:
    """As Go reads durations."""
    parsed = parse_config(f"rate_limit: {{interval: {text}, burst: 1}}", WebFile, "x")
    assert parsed.rate_limit.interval_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (basic("u", "p:q"), ("u", "p:q")),
        ("basic " + basic("u", "")[6:] + " ", ("u", "")),
        ("Basic \udcff", None),
        ("Basic é", None),
        ("Basic /w==", None),
        ("Basic dQ==", None),
        ("Bearer x", None),
        ("", None),
        (None, None),
    ],
)
def test_basic_credentials(header: str | None, expected: tuple[str, str] | None) -> None:
    """Any bytes may stand in the header."""
    assert basic_credentials(header) == expected


@pytest.mark.thorough
async def test_wrong_guesses_do_not_delay_other_clients() -> None:
    """With hundreds of wrong passwords waiting, a cached good one is answered at once and a new one in its turn."""
    checker = PasswordChecker()
    hashed = bcrypt.hashpw(b"good", bcrypt.gensalt(9)).decode()
    assert await checker.check("scraper", "prom", "good", hashed)
    began = time.thread_time()
    guesses = [
        asyncio.create_task(checker.check(f"attacker {n % 40}", "prom", f"wrong {n}", hashed))
        for n in range(300)
    ]
    await asyncio.sleep(0)
    cached = asyncio.create_task(checker.check("scraper", "prom", "good", hashed))
    await asyncio.sleep(0)
    assert cached.done()
    assert cached.result()
    assert not any(guess.done() for guess in guesses)

    other = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()
    newcomer = asyncio.create_task(checker.check("newcomer", "ops", "other", other))
    ended: list[asyncio.Task[bool]] = []  # in order: a thread that is late finds more of them done
    for task in (*guesses, newcomer):
        task.add_done_callback(ended.append)
    assert await newcomer
    assert ended.index(newcomer) <= 41  # one of each client before it
    assert time.thread_time() - began < 0.5  # bcrypt is not on this thread
    for guess in guesses:
        guess.cancel()
    await asyncio.gather(*guesses, return_exceptions=True)


async def test_a_client_has_a_bounded_number_of_guesses_in_the_queue() -> None:
    """Above it, a client gets 503 with Retry-After; others are not affected."""
    checker = PasswordChecker()
    hashed = hash_of("good")
    guesses = [asyncio.create_task(checker.check("a", "u", f"wrong {n}", hashed)) for n in range(100)]
    outcomes = await asyncio.gather(*guesses, return_exceptions=True)
    assert outcomes.count(False) == 8
    assert sum(isinstance(outcome, TooManyChecksError) for outcome in outcomes) == 92
    assert await checker.check("b", "u", "good", hashed)


async def test_what_is_checked() -> None:
    """An unknown user, an empty and an overlong password, one with a NUL; and no secret stays in memory."""
    checker = PasswordChecker()
    hashed = hash_of("good")
    for user_hash, password in (
        (None, "good"),
        (hashed, ""),
        (hashed, "g" * 100),
        (hashed, "a\0b"),
        (hashed, "Good"),
    ):
        for _ in range(2):
            assert not await checker.check("a", "u", password, user_hash)
    assert await checker.check("a", "u", "good", hashed)
    assert not await checker.check("a", "u", "good", hash_of("changed"))
    kept = repr(vars(checker)).replace("_good", "")
    assert "good" not in kept
    assert hashed not in kept
