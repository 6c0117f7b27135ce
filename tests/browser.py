"""Chromium without a window, steered through its debugging pipe: what a page becomes in a browser.

Every request that a page makes is noted, and all but those to local files and servers fail.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def program() -> str:
    """The browser; skips the test by name where there is none."""
    for name in _PROGRAMS:
        path = shutil.which(name)
        if path:
            return path
    pytest.skip("no Chromium: install it (Debian: apt-get install chromium) to look at pages")


class Browser:
    """A running Chromium; use it in a `with`."""

    def __init__(self, folder: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        arguments = [
            program(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={folder}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        # It reads commands from descriptor 3 and answers on 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *arguments],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self.command("Browser.close")
        os.close(self._in)
        os.close(self._out)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def command(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode("ascii") + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method: str, session: str) -> None:
        """Wait for an event of a page."""
        deadline = time.monotonic() + PATIENCE
        while not any(
            one.get("method") == method and one.get("sessionId") == session for one in self.events
        ):
            self.events.append(self._receive(deadline))

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self._in], [], [], left)[0], "Chromium is silent"
            data = os.read(self._in, 1 << 20)
            assert data, "Chromium ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer = json.loads(message)
        assert isinstance(answer, dict)
        return answer


class Page:
    """A page in a tab of its own; width and height in CSS pixels."""

    def __init__(
        self,
        browser: Browser,
        place: Path | str,
        width: int = 1400,
        height: int = 1000,
        dark: bool = False,
    ) -> None:
        self._browser = browser
        browser.events.clear()
        self._target = browser.command("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.command("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self.open(place)

    def open(self, place: Path | str) -> None:
        """Show a file, or what is at an address, and wait until it is loaded and drawn."""
        self._browser.events.clear()
        address = place if isinstance(place, str) else place.as_uri()
        self._call("Page.navigate", url=address)
        self._browser.wait_for("Page.loadEventFired", self._session)
        self.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")

    def _call(self, method: str, **parameters: Any) -> Any:
        return self._browser.command(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON would keep it."""
        told = self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait_until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true, over reloads of the page."""
        deadline = time.monotonic() + PATIENCE
        while not self._is_true(expression):
            assert time.monotonic() < deadline, f"never came: {expression}"
            time.sleep(0.05)

    def _is_true(self, expression: str) -> bool:
        try:
            return self.evaluate(expression) is True
        except AssertionError:  # between two pages there is none
            return False

    def text(self, selector: str) -> str:
        """The text of the first element that fits, as it is seen."""
        text = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        assert isinstance(text, str)
        return text

    def point(self, x: float, y: float) -> None:
        """Move the mouse there."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click into the middle of an element."""
        x, y = self.evaluate(
            f"""(() => {{
              const node = document.querySelector({json.dumps(selector)});
              node.scrollIntoView({{ block: "center" }});
              const box = node.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Type a text where the cursor is."""
        self._call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key such as Tab, ArrowLeft or Home."""
        codes = {"Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "Escape": 27}
        for kind in ("rawKeyDown", "keyUp"):
            self._call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
            )

    def picture(self, *, whole: bool = False) -> bytes:
        """A screenshot as PNG; `whole`: with what lies below the window's edge."""
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=True)["data"])

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened."""
        return [
            one["params"]["request"]["url"]
            for one in self._browser.events
            if one.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Errors of scripts, what the page's policy refused, what could not be loaded."""
        told = []
        for one in self._browser.events:
            parameters = one.get("params", {})
            if one.get("method") == "Runtime.exceptionThrown":
                told.append(str(parameters["exceptionDetails"]))
            elif one.get("method") == "Log.entryAdded":
                told.append(str(parameters["entry"]["text"]))
            elif one.get("method") == "Runtime.consoleAPICalled":
                told.append(str(parameters["args"]))
        return told
