"""Authentication and rate limit of each request: passwords and client certificates as an exporter-toolkit file says."""

import base64
import binascii
import ipaddress
import time
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from fabricpulse.core.web.passwords import PasswordChecker, TooManyChecksError
from fabricpulse.core.web.toolkit import WebConfig
from fabricpulse.core.web.toolkit_file import RateLimit, TlsServerConfig

# Whether a daemon authenticates a request itself, by bearer token say.
OwnAuthentication = Callable[[web.Request], bool]


def authentication_middleware(config: WebConfig, own: OwnAuthentication) -> Middleware:
    """Limits the rate of requests, checks the client certificate's names and the password, as the file says.

    own : where it is true, no password is required. A request has one Authorization header: without this, a daemon with
    passwords and a token would refuse every request.
    """
    checker = PasswordChecker()
    bucket = TokenBucket(time.monotonic())

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        config.refresh()
        content = config.content
        if not bucket.take(content.rate_limit, time.monotonic()):
            return web.Response(status=429, text="Too Many Requests\n")
        tls = content.tls
        if tls is not None and tls.client_allowed_sans and not _has_allowed_name(request, tls):
            return web.Response(status=403, text="client certificate is not on the list\n")
        users = content.basic_auth_users
        if not users or own(request):
            return await handler(request)
        credentials = basic_credentials(request.headers.get("Authorization"))
        if credentials is None:
            return _unauthorized()
        user, password = credentials
        try:
            if await checker.check(request.remote or "", user, password, users.get(user)):
                return await handler(request)
        except TooManyChecksError:
            return web.Response(
                status=503, text="too many passwords to check, try again\n", headers={"Retry-After": "1"}
            )
        return _unauthorized()

    return authenticate


class TokenBucket:
    """The toolkit's rate limit (golang.org/x/time/rate): one token an interval, at most `burst` of them."""

    def __init__(self, now: float) -> None:
        self._tokens = float("inf")  # full, whatever the burst is
        self._at = now

    def take(self, limit: RateLimit, now: float) -> bool:
        """Whether a request may be answered at `now` (seconds)."""
        interval_s = limit.interval_s
        if interval_s <= 0:
            return True
        self._tokens = min(float(limit.burst), self._tokens + (now - self._at) / interval_s)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def basic_credentials(authorization: str | None) -> tuple[str, str] | None:
    """User and password of an Authorization header (RFC 7617), None for anything else."""
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        # Not base64 of text: a header may hold any bytes.
        data = base64.b64decode(value.strip().encode("ascii"), validate=True)
        user, colon, password = data.decode().partition(":")
    except (binascii.Error, UnicodeError):
        return None
    return (user, password) if colon else None


def _unauthorized() -> web.Response:
    challenge = {"WWW-Authenticate": 'Basic realm="fabricpulse"'}
    return web.Response(status=401, text="Unauthorized\n", headers=challenge)


def _has_allowed_name(request: web.Request, tls: TlsServerConfig) -> bool:
    certificate = request.get_extra_info("peercert")
    if not certificate:
        return not tls.requires_client_certificate  # VerifyClientCertIfGiven, and none was given
    names = {_normal(kind, value) for kind, value in certificate.get("subjectAltName", ())}
    return not names.isdisjoint(tls.client_allowed_sans)


def _normal(kind: str, value: str) -> str:
    """A name as Go writes it: OpenSSL spells IPv6 addresses out."""
    if kind == "IP Address":
        try:
            return str(ipaddress.ip_address(value.strip()))
        except ValueError:
            return value
    return value
