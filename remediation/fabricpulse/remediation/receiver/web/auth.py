"""Who asks, and what that role may do. Passwords and certificates were checked before, by the web configuration.

    alert     POST /api/v1/alertmanager
    agent     /api/v1/agents/<its own host>/…
    viewer    GET of everything else
    operator  viewer, and pause, resume, release, forget, …; POST /-/reload

Without `access` and `token_file` whoever the web configuration has let in by a password or certificate may do
everything. Where it asks for neither, everybody may read and every agent report, but changes are for this machine:
orders for its users, alerts for them and for the Alertmanagers that the receiver polls.
"""

import hashlib
import hmac
from collections import Counter
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from fabricpulse.core.errors import ConfigError
from fabricpulse.core.log import get_logger
from fabricpulse.core.web.authentication import basic_credentials
from fabricpulse.core.web.token_file import SecretFile, TokenFile
from fabricpulse.remediation.receiver.config import AccessConfig, ReceiverConfig, Role
from fabricpulse.remediation.receiver.store.store import StoreError
from fabricpulse.remediation.receiver.web.origin import is_of, is_of_this_machine

log = get_logger(__name__)

ROUTES = ("alertmanager", "agents", "operator")
_NEEDED: dict[str, tuple[Role, ...]] = {"alertmanager": ("alert",), "agents": ("agent",)}
_READERS: tuple[Role, ...] = ("viewer", "operator")
_WRITERS: tuple[Role, ...] = ("operator",)
_ALL: tuple[Role, ...] = ("alert", "agent", "viewer", "operator")
_MIN_KEY = 16
_RELOAD = "/-/reload"


@dataclass(frozen=True)
class Principal:
    """Who asks. name : of the access entry, user or certificate; "" when nobody has authenticated. host : the only one
    that an agent speaks for, "" for any."""

    name: str
    roles: tuple[Role, ...]
    host: str = ""


class Access:
    """The entries of `access`, with the secrets in their files."""

    def __init__(self, config: ReceiverConfig) -> None:
        """Raises ConfigError when a file cannot be used or a key is too short."""
        entries = config.access
        if config.token_file:
            entries = (AccessConfig(name="token", role="operator", token_file=config.token_file),)
        self._shared = bool(config.token_file)
        self.is_open = not entries
        self._tokens = [(entry, TokenFile(entry.token_file)) for entry in entries if entry.token_file]
        self._keys = [(entry, agent_key(entry.key_file)) for entry in entries if entry.key_file]
        self.has_tokens = bool(self._tokens or self._keys)
        self._users = {entry.user: entry for entry in entries if entry.user}
        self._certificates = {entry.certificate: entry for entry in entries if entry.certificate}

    def identify(self, authorization: str, user: str, names: frozenset[str], host: str) -> Principal | None:
        """Who shows this; None without a valid secret.

        user : whose password was checked, "" for none. names : of the client certificate that was checked. host : that
        the path of an agent names.
        """
        if self.is_open:
            return Principal(user or min(names, default=""), _ALL)
        for entry, token in self._tokens:
            if token.accepts(authorization):
                return Principal(entry.name, _ALL if self._shared else (entry.role,))
        if host and authorization[:7].lower() == "bearer ":
            shown = authorization[7:].strip().encode("utf-8", "surrogateescape")
            for _, key in self._keys:
                if hmac.compare_digest(shown, agent_token(key.value, host).encode()):
                    return Principal(f"agent of {host}", ("agent",), host)
        found = self._users.get(user) if user else None
        if found is None:
            found = next(
                (self._certificates[name] for name in sorted(names) if name in self._certificates), None
            )
        return Principal(found.name, (found.role,)) if found is not None else None


def agent_token(key: str, host: str) -> str:
    """The bearer token of one host's agent: HMAC-SHA256 of its name, in hexadecimal digits."""
    return hmac.new(key.encode(), f"fabricpulse agent {host}".encode(), hashlib.sha256).hexdigest()


class AccessControl:
    """Middleware of /api/ and /-/reload: identity, role, internal errors as 503. refused : requests answered 401 or
    403. alertmanagers : addresses of those that are polled. all_known : whether these are all of them."""

    def __init__(self, access: Access, has_passwords: bool) -> None:
        """has_passwords : the web configuration checks passwords, so that a user in a request is who it says."""
        self.access = access
        self._has_passwords = has_passwords
        self.refused: Counter[str] = Counter()
        self.alertmanagers: frozenset[str] = frozenset()
        self.all_known = True

    def covers(self, request: web.Request) -> bool:
        """Whether a request shows a token that is checked here, so that no password is asked for as well."""
        shown = request.headers.get("Authorization", "")
        return self.access.has_tokens and _is_ours(request) and shown[:7].lower() == "bearer "

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets a request through, or answers it. The principal is in request["principal"]."""
        if _is_ours(request) and (refusal := self._check(request)) is not None:
            if refusal.status != 503:
                self.refused[route_name(request)] += 1  # the server logs it
            return refusal
        try:
            return await handler(request)
        except StoreError:
            # Our fault, not the sender's. The text stays constant, since Alertmanager writes it to its log.
            return web.Response(status=503, text="journal unavailable, try again\n")
        except web.HTTPException:
            raise
        except ConnectionError:
            raise
        except Exception:
            log.exception("request failed", path=request.path)
            return web.Response(status=503, text="internal error, try again\n")

    def _check(self, request: web.Request) -> web.Response | None:
        route = route_name(request)
        host = request.path.split("/")[4] if route == "agents" else ""
        authorization = request.headers.get("Authorization", "")
        credentials = basic_credentials(authorization) if self._has_passwords else None
        user = credentials[0] if credentials else ""
        principal = self.access.identify(authorization, user, certificate_names(request), host)
        if principal is None:
            return web.Response(status=401, text="Unauthorized\n", headers={"WWW-Authenticate": "Bearer"})
        reads = request.method in ("GET", "HEAD")
        needed = _NEEDED.get(route, _READERS if reads else _WRITERS)
        if not set(needed) & set(principal.roles):
            return web.Response(status=403, text=f"needs the role {' or '.join(needed)}\n")
        if not reads and (problem := _foreign(request, route)):
            return web.Response(status=403, text=f"{problem}\n")
        if not (reads or principal.name or route == "agents") and (problem := self._unknown(request, route)):
            if route == "alertmanager" and not self.all_known and "Origin" not in request.headers:
                # Perhaps it is one whose name was not looked up yet: what it is answered 403 it does not send again.
                return web.Response(
                    status=503, text="not all Alertmanagers' addresses are known, try again\n"
                )
            return web.Response(status=403, text=f"{problem}; set access in the receiver's configuration\n")
        request["principal"] = principal
        return None

    def _unknown(self, request: web.Request, route: str) -> str:
        """Why a change is refused where no authentication is configured, "" if it is not."""
        if "Origin" in request.headers:
            # Its name may lead to this machine in one browser only, so that the page's origin and this server are one.
            return "without access control no web page may ask this"
        if is_of_this_machine(request) or (route == "alertmanager" and is_of(request, self.alertmanagers)):
            return ""
        also = ", or an Alertmanager of `alertmanagers`," if route == "alertmanager" else ""
        return f"without access control only this machine{also} may ask this"


def owner_of(request: web.Request, claimed: str) -> str:
    """The name for the journal: who has authenticated; what the request claims only beside it."""
    principal: Principal = request["principal"]
    claimed = claimed or "unknown"
    if not principal.name:
        return f"{claimed} (not authenticated)"
    return principal.name if principal.name == claimed else f"{principal.name} (as {claimed})"


def route_name(request: web.Request) -> str:
    """`alertmanager`, `agents` or `operator`: who asks such things."""
    if request.path == "/api/v1/alertmanager":
        return "alertmanager"
    return "agents" if request.path.startswith("/api/v1/agents/") else "operator"


def _is_ours(request: web.Request) -> bool:
    return request.path.startswith("/api/") or request.path == _RELOAD


def certificate_names(request: web.Request) -> frozenset[str]:
    """DNS names of the client certificate, and its common name if it has none."""
    certificate: Any = request.get_extra_info("peercert") or {}
    names = {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}
    if not names:
        names = {v for part in certificate.get("subject", ()) for k, v in part if k == "commonName"}
    return frozenset(names)


def _foreign(request: web.Request, route: str) -> str:
    """Why a change looks like one of a foreign web page, which a browser sends with its user's credentials."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        return "a page of another origin must not ask this"
    if route == "operator" and request.path != _RELOAD and request.content_type != "application/json":
        return "send application/json"
    return ""


def agent_key(path: str) -> SecretFile:
    """The key in a `key_file`. Raises ConfigError when the file cannot be used or the key is too short."""
    key = SecretFile("key_file", path)
    if len(key.value) < _MIN_KEY:
        raise ConfigError(f"key_file {path} has fewer than {_MIN_KEY} characters in its first line")
    return key
