"""A real browser for tests and pictures: Chromium, headless, over its debugging pipe.

    with Browser(find_chromium()) as browser:
        page = browser.open(path, width=1200)
        assert page.evaluate("document.title") == "..."
        assert not page.errors

What the page prints as an error, throws or asks the network for is kept, from before it loads.
"""

import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile

TIMEOUT_S = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The pipe's ends have to be descriptors 3 and 4 of the browser.
_START = "import os,sys; os.dup2(int(sys.argv[1]),3); os.dup2(int(sys.argv[2]),4); "
_START += "os.execv(sys.argv[3], sys.argv[3:])"
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
          "--no-first-run", "--disable-extensions", "--disable-background-networking",
          "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe")  # fmt: skip


def find_chromium():
    """The path of a Chromium on this machine, or None."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """A running Chromium with a profile of its own."""

    def __init__(self, executable):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self.write_end = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in os.pipe())
        self.read_end, answers = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in os.pipe())
        arguments = [executable, *_FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(commands), str(answers), *arguments],
            pass_fds=(commands, answers), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self.buffer, self.last_id, self.events = b"", 0, []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        try:
            self.send("Browser.close")
            self.process.wait(TIMEOUT_S)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.read_end)
        os.close(self.write_end)
        self.profile.cleanup()

    def send(self, method, session=None, **parameters):
        """Asks for something and returns the answer; events that come first are kept."""
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method, session):
        """Waits for an event of a page."""
        while True:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    return event
            self.events.append(self._receive())

    def open(self, path, *, width=1200, height=900, is_dark=False):
        """Loads a file into a new page and waits until it has loaded."""
        return Page(self, pathlib.Path(path).resolve().as_uri(), width, height, is_dark)

    def _receive(self):
        while b"\0" not in self.buffer:
            if not select.select([self.read_end], [], [], TIMEOUT_S)[0]:
                raise TimeoutError("Chromium does not answer")
            chunk = os.read(self.read_end, 2**20)
            if not chunk:
                raise OSError("Chromium has ended")
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)


class Page:
    """One open page."""

    def __init__(self, browser, address, width, height, is_dark):
        self.browser, self.address = browser, address
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=address)
        browser.wait_for("Page.loadEventFired", self.session)

    def send(self, method, **parameters):
        """Asks something of this page."""
        return self.browser.send(method, self.session, **parameters)

    def resize(self, width, height, *, scale=1):
        """Sets the size of the window, in CSS pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=width < 600)  # fmt: skip

    def evaluate(self, expression):
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def mouse(self, kind, x, y, **more):
        """A real mouse event: "mouseMoved", "mousePressed" or "mouseReleased"."""
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, *, is_whole=False):
        """A PNG of the window, or of the whole page."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        return base64.b64decode(answer["data"])

    def _seen(self, *methods):
        self.send("Runtime.evaluate", expression="0")  # what happened so far has been told then
        return [e for e in self.browser.events
                if e.get("sessionId") == self.session and e["method"] in methods]  # fmt: skip

    @property
    def errors(self):
        """What the page threw, printed as an error, or the browser complained about."""
        said = []
        for event in self._seen("Runtime.exceptionThrown", "Log.entryAdded",
                                "Runtime.consoleAPICalled"):  # fmt: skip
            parameters = event["params"]
            level = parameters.get("entry", parameters).get("level", parameters.get("type"))
            if event["method"] == "Runtime.exceptionThrown" or level in ("error", "warning"):
                said.append(parameters)
        return said

    @property
    def requests(self):
        """The addresses that the page asked for, besides its own."""
        asked = [e["params"]["request"]["url"] for e in self._seen("Network.requestWillBeSent")]
        return [url for url in asked if url != self.address and not url.startswith("data:")]
