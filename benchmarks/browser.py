"""A browser that shows a page as people see it: on a desk, on a phone, in the dark, on paper, by the keyboard alone.

It is Debian's package chromium, told what to do by its own protocol (Chrome DevTools). Pages are files.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

_PATIENCE = 60.0
_LOOK = 0.02
_LARGEST = 1 << 30


class Page:
    """The one tab of a browser."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        try:
            self._connection: WebSocketClientConnection = self._loop.run_until_complete(_connected(address))
        except BaseException:
            self._loop.close()
            raise

    def close(self) -> None:
        """Leave it."""
        self._loop.run_until_complete(self._left())  # outside a loop, Tornado makes one and leaves it
        self._loop.close()

    async def _left(self) -> None:
        self._connection.close()

    def tell(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send one command of the protocol, and return its result."""
        return self._loop.run_until_complete(asyncio.wait_for(self._told(method, parameters), _PATIENCE))

    async def _told(self, method: str, parameters: dict[str, object]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._connection.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        while (said := await self._connection.read_message()) is not None:
            found: dict[str, Any] = json.loads(said)
            if found.get("id") == number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                result: dict[str, Any] = found["result"]
                return result
        raise ConnectionError("the browser closed the page")

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file on a screen of this size."""
        self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.colours(dark=dark)
        self.value("window.before = true")
        self.tell("Page.navigate", url=path.resolve().as_uri())
        _until(lambda: self.value("!window.before && document.readyState == 'complete'"))

    def colours(self, *, dark: bool, media: str = "") -> None:
        """Have the page shown to people who like light or dark colours; as it is printed, where media is print."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def value(self, expression: str) -> Any:
        """Return what an expression of JavaScript is, awaited; what the page forbids does not bind it."""
        found = self.tell("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", "a script failed"))
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press Tab or Enter and let it go."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r")}[key]
        for kind in ("keyDown", "keyUp"):
            self.tell("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write what the whole page looks like as a PNG, or what the screen shows of it."""
        found = self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def paper(self, path: Path) -> None:
        """Write what is printed as a PDF, A4, without backgrounds, as browsers do."""
        found = self.tell("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        path.write_bytes(base64.b64decode(found["data"]))


async def _connected(address: str) -> WebSocketClientConnection:
    return await websocket_connect(address, max_message_size=_LARGEST)


def _until(done: Any) -> Any:
    until = time.monotonic() + _PATIENCE
    while not (found := done()):
        if time.monotonic() > until:
            raise TimeoutError("the browser does not get there")
        time.sleep(_LOOK)
    return found


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start a browser without a screen, and give its tab."""
    profile = folder / "profile"
    process = subprocess.Popen(  # noqa: S603 - our own words
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",  # noqa: S607 - Debian's
         "--remote-debugging-port=0",
         f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    said = profile / "DevToolsActivePort"
    try:
        port = int(_until(lambda: said.exists() and said.read_text().split())[0])
        page = Page(_until(lambda: _tab(port)))
        try:
            yield page
        finally:
            page.close()
    finally:
        process.kill()
        process.wait()


def _tab(port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    connection.request("GET", "/json")
    tabs = json.loads(connection.getresponse().read())
    connection.close()
    return next((tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"), "")
