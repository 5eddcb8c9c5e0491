"""A headless Chromium, driven over its own protocol (CDP) through two pipes: no driver, no port, nothing else.

Keys and clicks are real ones: they go to what has the focus, or lies at that place.
"""

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

WAIT_SECONDS = 60.0
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    *("--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-extensions"),
    *("--disable-component-update", "--disable-sync", "--password-store=basic", "--force-color-profile=srgb"),
)
KEYS: dict[str, dict[str, Any]] = {
    "Tab": {"windowsVirtualKeyCode": 9},
    "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"},
    " ": {"windowsVirtualKeyCode": 32, "text": " "},
    "ArrowRight": {"windowsVirtualKeyCode": 39},
    "End": {"windowsVirtualKeyCode": 35},
}


def program() -> str:
    """Where Chromium is. RuntimeError if it is not."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    raise RuntimeError("the tests of the page need Chromium: run tools/ci-packages as root, or install it")


class Browser:
    """One Chromium with one tab. `errors`: what scripts and the console complained of, the CSP's refusals included, but
    not the service's, which the page itself has to tell.
    """

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self._session = ""
        self._rest = b""
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        read_by_it, self._to = os.pipe()
        self._from, written_by_it = os.pipe()
        arguments = [program(), *ARGUMENTS, f"--user-data-dir={self._profile}"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")  # there is none for root
        shell = ["bash", "-c", f'exec "$@" 3<&{read_by_it} 4>&{written_by_it}', "bash", *arguments]
        with (self._profile.parent / "chromium.log").open("w") as log:
            self._process = subprocess.Popen(shell, pass_fds=(read_by_it, written_by_it), stdout=log, stderr=log)
        os.close(read_by_it)
        os.close(written_by_it)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._to)  # it ends when its pipe does
        try:
            self._process.wait(WAIT_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._from)

    def view(self, width: int, height: int, *, dark: bool = False) -> None:
        """How large the window is, and which colours its person prefers."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """What an expression is in the page; a promise is waited for."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {json.dumps(answer['exceptionDetails'])[:2000]}")
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true in the page."""
        ends = time.monotonic() + WAIT_SECONDS
        check = f"new Promise((tell) => setTimeout(() => tell(Boolean({condition})), 20))"
        while not self.ask(check):
            assert time.monotonic() < ends, f"waited for {condition}; the page says:\n{self.text('main')}"

    def text(self, selector: str) -> str:
        """What a person reads there."""
        return str(self.ask(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        """At the middle of what is there; again if the page moved under the pointer, as a person would."""
        ends = time.monotonic() + WAIT_SECONDS
        is_hit = False
        while not is_hit:
            assert time.monotonic() < ends, f"{selector} was never hit; the page says:\n{self.text('main')}"
            self.until(f"document.querySelector({json.dumps(selector)})?.checkVisibility()")
            x, y = self.ask(
                "((e) => { e.scrollIntoView({block: 'center'}); window.isHit = false;"
                "e.addEventListener('click', () => { window.isHit = true; }, {capture: true, once: true});"
                "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })"
                f"(document.querySelector({json.dumps(selector)}))"
            )
            for kind in ("mousePressed", "mouseReleased"):
                self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
            is_hit = self.ask("window.isHit !== false")  # a page of its own came: the click left this one

    def key(self, name: str) -> None:
        """Press and release."""
        code = "Space" if name == " " else name
        self._call("Input.dispatchKeyEvent", type="keyDown", key=name, code=code, **KEYS[name])
        self._call("Input.dispatchKeyEvent", type="keyUp", key=name, code=code)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self._call("Input.insertText", text=text)

    def tab_to(self, id: str, presses_max: int = 60) -> None:
        """With the Tab key alone."""
        for _ in range(presses_max):
            self.key("Tab")
            if self.ask("document.activeElement.id") == id:
                return
        raise AssertionError(f"{presses_max} times Tab did not lead to #{id}")

    def downloads(self, directory: Path) -> None:
        """Keep downloads there."""
        self._call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(directory))

    def picture(self, path: Path, height: int | None = None) -> None:
        """The page as PNG: from its top as high as this, or whole."""
        width, whole = self.ask("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height or whole, "scale": 1}
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._from, 1 << 16)
            if not piece:
                raise RuntimeError(f"Chromium ended: {(self._profile.parent / 'chromium.log').read_text()[-2000:]}")
            self._rest += piece
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:1000])
        elif event["method"] == "Log.entryAdded" and _is_error(parameters["entry"]):
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")


def _is_error(entry: dict[str, Any]) -> bool:
    return bool(entry["level"] == "error" and entry["source"] != "network")
