"""Chromium without a window, driven over a pipe by its DevTools protocol: no port, no further package."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Seconds within which the browser answers; the limit is for defects.
ANSWER_S = 60.0
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip
#: Of keys that the browser knows by their number alone.
_KEYS = {"Tab": 9, "Enter": 13}


def chromium() -> str | None:
    """The program; None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of one browser."""

    def __init__(self, profile: Path) -> None:
        program = chromium()
        assert program is not None
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        script = f'exec "$@" 3<&{their_in} 4>&{their_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "chromium", program, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(their_in, their_out), process_group=0,
        )  # fmt: skip
        os.close(their_in)
        os.close(their_out)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session = ""
        self._pressed = False
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one for one in targets if one["type"] == "page")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command. Raises RuntimeError for an error."""
        number = next(self._numbers)
        asked: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        data = json.dumps(asked).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            told = self._next()
            if told.get("id") == number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                found: dict[str, Any] = told["result"]
                return found
            self.events.append(told)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + ANSWER_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser does not answer")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told

    def show(
        self, path: Path, width: int = 1280, height: int = 900, *, dark: bool = False, script: bool = True
    ) -> float:
        """Opens a file, and returns the seconds until it was loaded and drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.events.clear()
        began = time.monotonic()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        self.call("Page.captureScreenshot", format="jpeg", quality=10)  # the first frame is drawn
        return time.monotonic() - began

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives. Raises RuntimeError."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def problems(self) -> list[str]:
        """Errors and warnings that the page has caused so far, and addresses that it asked for."""
        self.value("0")
        found = []
        for event in self.events:
            params = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(f"exception: {params['exceptionDetails']}")
                case "Runtime.consoleAPICalled":
                    found.append(f"console: {params['args']}")
                case "Log.entryAdded":
                    found.append(f"log: {params['entry']['text']}")
                case "Network.requestWillBeSent" if not params["request"]["url"].startswith(("file:", "data:")):
                    found.append(f"request: {params['request']['url']}")
        return found

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Writes a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 9000), "scale": 1}
        more = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **more)["data"]))

    def paper(self) -> bytes:
        """The page as PDF, as it is printed."""
        return base64.b64decode(
            self.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.7)["data"]
        )

    def key(self, name: str, text: str = "") -> None:
        """Presses a key."""
        code = {"windowsVirtualKeyCode": _KEYS[name]} if name in _KEYS else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, text=text if kind == "keyDown" else "", **code)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """mouseMoved, mousePressed or mouseReleased, of the left button."""
        self._pressed = kind == "mousePressed" or (self._pressed and kind == "mouseMoved")
        more: dict[str, Any] = {
            "button": "left" if self._pressed or kind == "mouseReleased" else "none",
            "buttons": int(self._pressed),
        }
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=1, pointerType="mouse", **more)

    def close(self) -> None:
        self._session = ""
        try:
            self.call("Browser.close")
            self.process.wait(ANSWER_S)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            pass
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            os.close(self._in)
            os.close(self._out)


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile."""
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
