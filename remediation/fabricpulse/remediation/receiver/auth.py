"""Authentication of the receiver's API by bearer token. Passwords and certificates are the web configuration's."""

import time
from collections import Counter

from aiohttp import web
from aiohttp.typedefs import Handler

from fabricpulse.core.log import get_logger
from fabricpulse.core.web.token_file import TokenFile
from fabricpulse.remediation.receiver.store import StoreError

log = get_logger(__name__)

# One log line for so many seconds, whoever is refused: a misconfigured Alertmanager must show, a flood must not fill
# the disk.
_LOG_EVERY_S = 10.0


class BearerAuth:
    """Asks for the token below /api/, and turns internal errors into 503. token : what is asked for.

    refused : requests answered 401, by route.
    """

    def __init__(self, token: TokenFile) -> None:
        self.token = token
        self._logged_at = float("-inf")
        self._unlogged = 0
        self.refused: Counter[str] = Counter()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets a request through, or answers it."""
        if request.path.startswith("/api/") and not self._accepts(request):
            self._refuse(request)
            return web.Response(status=401, text="Unauthorized\n", headers={"WWW-Authenticate": "Bearer"})
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

    def _accepts(self, request: web.Request) -> bool:
        return self.token.accepts(request.headers.get("Authorization", ""))

    def _refuse(self, request: web.Request) -> None:
        self.refused[route_name(request)] += 1
        self._unlogged += 1
        if time.monotonic() - self._logged_at < _LOG_EVERY_S:
            return
        shown = "a wrong token" if "Authorization" in request.headers else "no token"
        log.warning(
            "request refused: 401",
            path=request.path[:200],
            remote=request.remote,
            shown=shown,
            refused=self._unlogged,
        )
        self._logged_at, self._unlogged = time.monotonic(), 0


ROUTES = ("alertmanager", "agents", "operator")


def route_name(request: web.Request) -> str:
    """`alertmanager`, `agents` or `operator`: who asks such things."""
    if request.path == "/api/v1/alertmanager":
        return "alertmanager"
    return "agents" if request.path.startswith("/api/v1/agents/") else "operator"
