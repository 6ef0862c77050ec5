"""Authentication of the receiver's API by bearer token. Passwords and certificates are the web configuration's."""

from collections import Counter

from aiohttp import web
from aiohttp.typedefs import Handler

from fabricpulse.core.log import get_logger
from fabricpulse.core.web.token_file import TokenFile
from fabricpulse.remediation.receiver.store import StoreError

log = get_logger(__name__)


class BearerAuth:
    """Asks for the token below /api/, and turns internal errors into 503. token : what is asked for.

    refused : requests answered 401, by route.
    """

    def __init__(self, token: TokenFile) -> None:
        self.token = token
        self.refused: Counter[str] = Counter()

    def covers(self, request: web.Request) -> bool:
        """Whether a request has to show the token."""
        return bool(self.token.token) and request.path.startswith("/api/")

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets a request through, or answers it."""
        shown = request.headers.get("Authorization", "")
        if self.covers(request) and not self.token.accepts(shown):
            self.refused[route_name(request)] += 1  # the server logs it
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


ROUTES = ("alertmanager", "agents", "operator")


def route_name(request: web.Request) -> str:
    """`alertmanager`, `agents` or `operator`: who asks such things."""
    if request.path == "/api/v1/alertmanager":
        return "alertmanager"
    return "agents" if request.path.startswith("/api/v1/agents/") else "operator"
