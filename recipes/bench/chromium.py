"""Headless Chromium, driven over the DevTools protocol: what a person does at a page, and sees.

Source: https://chromedevtools.github.io/devtools-protocol/ (domains Page, Runtime, Input, Network,
Emulation). A WAV file stands for the microphone, played over and over from its start.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--mute-audio",
    "--use-fake-device-for-media-stream",
    "--remote-debugging-port=0",
)
ALLOW_MICROPHONE = "--use-fake-ui-for-media-stream"

WAIT_S = 20.0


def executable() -> str | None:
    """Chromium, if this machine has one."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.errors: list[str] = []
        """Exceptions that nobody caught, and errors on the console."""
        self.requests: list[str] = []
        """Addresses that were asked."""
        self.on_frame: Callable[[str], None] = lambda _: None
        """Called with each text that a WebSocket of the page's gets."""
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def begin(self) -> None:
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")

    async def close(self) -> None:
        await self._socket.close()
        await self._reader

    async def call(
        self, method: str, timeout_s: float = 2 * WAIT_S, **params: Any
    ) -> dict[str, Any]:
        """One call of the protocol."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(timeout_s):
            result: dict[str, Any] = await answer
        return result

    async def goto(self, url: str) -> None:
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(WAIT_S):
            await self._loaded.wait()

    async def run(self, expression: str, timeout_s: float = 2 * WAIT_S) -> Any:
        """The value of an expression, awaited if it is a promise."""
        answer = await self.call(
            "Runtime.evaluate",
            timeout_s,
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if found := answer.get("exceptionDetails"):
            raise AssertionError(found.get("exception", found).get("description", found["text"]))
        return answer["result"].get("value")

    async def until(self, condition: str, timeout_s: float = WAIT_S) -> Any:
        """Waits in the page for an expression to become true; gives its value."""
        return await self.run(
            f"""new Promise((resolve, reject) => {{
              const end = performance.now() + {1000 * timeout_s};
              const look = () => {{
                const value = ({condition});
                if (value) resolve(value);
                else if (performance.now() > end)
                  reject(new Error({json.dumps(f"never true: {condition}")} + "\\n" +
                         document.body.dataset.talk + "\\n" + document.body.innerText));
                else setTimeout(look, 20);
              }};
              look();
            }})""",
            timeout_s + WAIT_S,
        )

    async def text(self, selector: str) -> str:
        return str(await self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def click(self, selector: str) -> None:
        """Presses the mouse in the middle of what a person would see there."""
        place = await self.run(
            f"""(() => {{
              const element = document.querySelector({json.dumps(selector)});
              element.scrollIntoView({{block: "center"}});
              const box = element.getBoundingClientRect();
              const x = box.x + box.width / 2, y = box.y + box.height / 2;
              const hit = document.elementFromPoint(x, y);
              return {{x, y, hit: element.contains(hit), seen: hit?.outerHTML.slice(0, 200)}};
            }})()"""
        )
        assert place["hit"], f"{selector} is covered by {place['seen']}"
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place["x"],
                y=place["y"],
                button="left",
                clickCount=1,
            )

    async def press(self, key: str) -> None:
        typed = "\r" if key == "Enter" else key
        text: dict[str, Any] = {"text": typed} if len(typed) == 1 else {}
        code = {"Tab": 9, "Enter": 13, "Escape": 27}.get(key, ord(key[0].upper()))
        same: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **same, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    async def look(
        self, width: int, height: int, *, dark: bool = False, phone: bool = False
    ) -> None:
        """The window's size and the person's taste."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self) -> bytes:
        """What is seen, as PNG."""
        answer = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(answer["data"])

    async def _read(self) -> None:
        async for message in self._socket:
            fields = message.json()
            if "id" in fields:
                answer = self._answers.pop(fields["id"])
                if "error" in fields:
                    answer.set_exception(AssertionError(fields["error"]["message"]))
                else:
                    answer.set_result(fields["result"])
                continue
            params = fields["params"]
            match fields["method"]:
                case "Page.loadEventFired":
                    self._loaded.set()
                case "Runtime.exceptionThrown":
                    details = params["exceptionDetails"]
                    found = details.get("exception", {}).get("description", details["text"])
                    self.errors.append(found)
                case "Log.entryAdded" if params["entry"]["level"] == "error":
                    entry = params["entry"]
                    self.errors.append(f"{entry['text']} {entry.get('url', '')}")
                case "Network.requestWillBeSent":
                    self.requests.append(params["request"]["url"])
                case "Network.webSocketFrameReceived":
                    self.on_frame(params["response"]["payloadData"])
                case "Network.webSocketCreated":
                    self.requests.append(params["url"])


@asynccontextmanager
async def chromium(
    profile: Path, *, microphone: Path | None = None, flags: tuple[str, ...] = (ALLOW_MICROPHONE,)
) -> AsyncIterator[Page]:
    """A browser with one empty page; gone, with all its processes, at the end."""
    path = executable()
    assert path is not None
    heard = () if microphone is None else (f"--use-file-for-fake-audio-capture={microphone}",)
    process = await asyncio.create_subprocess_exec(
        path,
        *FLAGS,
        *flags,
        *heard,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        port = await _port(process)
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = await answer.json(content_type=None)
            address = next(tab for tab in tabs if tab["type"] == "page")["webSocketDebuggerUrl"]
            async with http.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket)
                await page.begin()
                yield page
                await page.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async with asyncio.timeout(2 * WAIT_S):
        async for line in process.stderr:
            if line.startswith(b"DevTools listening on ws://"):
                return int(line.split(b":")[2].split(b"/")[0])
    raise AssertionError("Chromium ended before it listened")
