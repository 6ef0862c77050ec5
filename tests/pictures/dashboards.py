"""Pictures of the dashboards, as a real Grafana draws them: `make pictures`.

GRAFANA_URL names the Grafana, with an administrator: `http://admin:admin@localhost:3000`. PROMETHEUS_URL is what it
shall read, such as the one of `fabricpulse demo --keep`. Both are left as they were: data source and folder that this
makes are removed at its end. Exits 1 if a panel shows an error.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

ROOT = Path(__file__).resolve().parents[2]
NAME = "fabricpulse-pictures"
# A page with thirty panels takes some seconds on an idle machine.
PAGE_S = 90.0
# How long nothing may change before a page counts as drawn.
SETTLED_S = 1.5
# What the page says of itself. Grafana marks its panels for its own end-to-end tests (packages/grafana-e2e-selectors).
_STATE = """(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  return {
    panels: all('[data-testid^="data-testid Panel header"]').length,
    loading: all('[aria-label="Panel loading bar"], [data-testid="data-testid Loading bar"]').length,
    errors: all('[data-testid^="data-testid Panel status error"]').map(
      (e) => e.closest('section')?.querySelector('h2')?.textContent || e.getAttribute('aria-label')),
    empty: all('section').filter((s) => /No data|Not measured|or not measured/.test(s.textContent)).map(
      (s) => s.querySelector('h2')?.textContent),
    text: document.body.innerText.length,
    height: Math.max(...all('.react-grid-item').map((d) => d.getBoundingClientRect().bottom + window.scrollY)) + 16,
  };
})()"""


@dataclass
class Page:
    """What came of one dashboard. errors, empty : titles of panels that failed, and that have no data."""

    name: str
    panels: int = 0
    errors: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Grafana:
    """The part of Grafana's HTTP API that is needed. url : may carry user and password."""

    def __init__(self, session: aiohttp.ClientSession, url: URL) -> None:
        self.url = url.with_user(None)
        self.headers: dict[str, str] = {}
        if url.user is not None:
            account = f"{url.user}:{url.password or ''}".encode()
            self.headers["Authorization"] = f"Basic {base64.b64encode(account).decode()}"
        self._session = session

    async def call(self, method: str, path: str, body: Any = None, *, absent_ok: bool = False) -> Any:
        """The answer as JSON. absent_ok : 404 is None. Raises SystemExit with what Grafana says."""
        async with self._session.request(
            method, self.url.join(URL(path)), json=body, headers=self.headers
        ) as response:
            if response.status == 404 and absent_ok:
                return None
            text = await response.text()
            if response.status >= 400:
                sys.exit(f"pictures: {method} {path}: {response.status} {text[:300]}")
            return json.loads(text)

    @contextlib.asynccontextmanager
    async def provisioned(self, prometheus: str, dashboards: dict[str, Any]) -> AsyncIterator[dict[str, str]]:
        """File name of each dashboard -> its path, as long as it lasts; of copies with uids of their own."""
        await self._remove()
        source = {"name": NAME, "uid": NAME, "type": "prometheus", "url": prometheus, "access": "proxy"}
        await self.call("POST", "/api/datasources", source)
        try:
            await self.call("POST", "/api/folders", {"uid": NAME, "title": NAME})
            paths = {}
            for name, dashboard in dashboards.items():
                copy = dashboard | {"uid": f"picture-{Path(name).stem}"[:40], "id": None}
                body = {"dashboard": copy, "folderUid": NAME, "overwrite": True}
                paths[name] = (await self.call("POST", "/api/dashboards/db", body))["url"]
            yield paths
        finally:
            await self._remove()

    async def _remove(self) -> None:
        await self.call("DELETE", f"/api/folders/{NAME}?forceDeleteRules=true", absent_ok=True)
        await self.call("DELETE", f"/api/datasources/uid/{NAME}", absent_ok=True)


class Tab:
    """One tab of a headless Chromium, by the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Result of a command; events in between are dropped."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=PAGE_S)
            if message.get("id") == self._number:
                if "error" in message:
                    sys.exit(f"pictures: {method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    async def state(self) -> dict[str, Any]:
        """See _STATE."""
        answer = await self.call("Runtime.evaluate", expression=_STATE, returnByValue=True)
        return dict(answer["result"].get("value") or {})

    async def size(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def drawn(self) -> dict[str, Any]:
        """The state once nothing loads and nothing has changed for SETTLED_S, or after PAGE_S."""
        end = time.monotonic() + PAGE_S
        last: dict[str, Any] = {}
        since = time.monotonic()
        while time.monotonic() < end:
            state = await self.state()
            if state != last:
                last, since = state, time.monotonic()
            elif state.get("panels") and not state["loading"] and time.monotonic() - since > SETTLED_S:
                return state
            await asyncio.sleep(0.25)  # the page tells of no such event
        return last


@contextlib.asynccontextmanager
async def browser(session: aiohttp.ClientSession) -> AsyncIterator[Tab]:
    """A headless Chromium with one tab."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        sys.exit("pictures: no chromium-headless-shell and no chromium on PATH; install one of them")
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
            "about:blank",
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert process.stderr is not None
            # It says the port and nothing else of use.
            async for line in process.stderr:
                if line.startswith(b"DevTools listening on ws://"):
                    port = line.decode().split("ws://", 1)[1].split("/", 1)[0]
                    break
            else:
                sys.exit(f"pictures: {program} ended before it listened")
            async with session.get(f"http://{port}/json/list") as response:
                (target,) = [t for t in await response.json() if t["type"] == "page"]
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Tab(socket)
        finally:
            # Its children hold the pipe open as long as they live.
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def take(grafana: Grafana, tab: Tab, path: str, file: Path, options: argparse.Namespace) -> Page:
    """Opens one dashboard, waits until it is drawn, and writes the picture of its whole height."""
    began = time.monotonic()
    query = {"orgId": "1", "from": options.start, "to": options.end, "kiosk": "1", "var-datasource": NAME}
    query |= dict(pair.split("=", 1) for pair in options.variable) | {"theme": options.theme}
    await tab.size(options.width, options.height)
    await tab.call("Page.navigate", url=str(grafana.url.join(URL(path)).with_query(query)))
    state = await tab.drawn()
    if options.whole:
        # Panels below the window are drawn only when they come into it.
        await tab.size(options.width, int(min(max(state.get("height", 0), options.height), 12_000)))
        state = await tab.drawn()
    shot = await tab.call("Page.captureScreenshot", format="webp", quality=80)
    file.write_bytes(base64.b64decode(shot["data"]))
    return Page(
        file.stem,
        state.get("panels", 0),
        state.get("errors", []),
        state.get("empty", []),
        time.monotonic() - began,
    )


async def pictures(grafana_url: str, prometheus: str, options: argparse.Namespace) -> list[Page]:
    """All that were asked for, one after another."""
    files = sorted((ROOT / "rules" / "dashboards").glob("*.json"))
    chosen = {
        file.name: json.loads(file.read_text(encoding="utf-8"))
        for file in files
        if not options.page or file.stem.removeprefix("fabricpulse-") in options.page
    }
    if not chosen:
        known = ", ".join(file.stem.removeprefix("fabricpulse-") for file in files)
        sys.exit(f"pictures: no such page; there are {known}")
    options.output.mkdir(parents=True, exist_ok=True)
    pages = []
    async with aiohttp.ClientSession() as session, browser(session) as tab:
        grafana = Grafana(session, URL(grafana_url))
        await tab.call("Network.enable")
        await tab.call("Network.setExtraHTTPHeaders", headers=grafana.headers)
        async with grafana.provisioned(prometheus, chosen) as paths:
            for name, path in paths.items():
                page = Path(name).stem.removeprefix("fabricpulse-")
                taken = await take(grafana, tab, path, options.output / f"{page}.webp", options)
                print(
                    f"{page}: {taken.panels} panels in {taken.seconds:.1f} s"
                    + (f"; error: {', '.join(taken.errors)}" if taken.errors else "")
                    + (f"; no data: {', '.join(map(str, taken.empty))}" if taken.empty else ""),
                    flush=True,
                )
                pages.append(taken)
    return pages


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make pictures", description=__doc__)
    parser.add_argument("--page", action="append", help="only this dashboard, such as fleet; repeatable")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs" / "pictures", help="folder (%(default)s)"
    )
    parser.add_argument("--start", default="now-15m", help="beginning of the time range (%(default)s)")
    parser.add_argument("--end", default="now", help="its end (%(default)s)")
    parser.add_argument(
        "--variable", action="append", default=[], metavar="var-NAME=VALUE", help="repeatable"
    )
    parser.add_argument("--width", type=int, default=1600, help="pixels (%(default)s)")
    parser.add_argument("--height", type=int, default=900, help="pixels, the least (%(default)s)")
    parser.add_argument(
        "--window", dest="whole", action="store_false", help="the first window, not the whole page"
    )
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    options = parser.parse_args()
    grafana, prometheus = os.environ.get("GRAFANA_URL"), os.environ.get("PROMETHEUS_URL")
    if not grafana or not prometheus:
        sys.exit(
            "pictures: set GRAFANA_URL to a Grafana with an administrator, such as http://admin:admin@localhost:3000, "
            "and PROMETHEUS_URL to what it shall read, such as the Prometheus of `fabricpulse demo --keep`"
        )
    pages = asyncio.run(pictures(grafana, prometheus, options))
    if any(page.errors or not page.panels for page in pages):
        sys.exit("pictures: not every panel was drawn")


if __name__ == "__main__":
    main()
