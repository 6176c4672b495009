"""A page in headless Chromium, driven by its debugging protocol: aiohttp is there anyway."""

import asyncio
import base64
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """A page: `requests` has the address of everything that it has asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self.requests: list[str] = []
        self._socket = socket
        self._number = 0

    async def send(self, method: str, **parameters: Any) -> dict:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = json.loads((await self._socket.receive(timeout=60)).data)
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("id") == self._number:
                return message["result"]

    async def evaluate(self, code: str) -> Any:
        """Return the value of a JavaScript expression."""
        return (await self.send("Runtime.evaluate", expression=code, returnByValue=True))["result"].get("value")

    async def until(self, code: str, seconds: float = 60) -> Any:
        """Return the value of an expression, once it is true."""
        for _ in range(int(10 * seconds)):
            if value := await self.evaluate(code):
                return value
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{code}\n{await self.evaluate('document.body.innerText')}")

    async def type(self, number: int, text: str) -> None:
        """Replace the text of a box by key strokes."""
        await self.evaluate(f"document.querySelectorAll('textarea')[{number}].select()")
        await self.evaluate(f"document.querySelectorAll('textarea')[{number}].focus()")
        await self.send("Input.insertText", text=text)

    async def screenshot(self, path: Path) -> None:
        picture = await self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))


@contextlib.asynccontextmanager
async def open_page(address: str, folder: Path, dark: bool = False) -> AsyncIterator[Page]:
    """Context manager: yield a page in a browser whose files are in a folder, and which reaches this machine only."""
    assert CHROMIUM is not None
    flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-port=0"
    nowhere = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    command = [CHROMIUM, *flags.split(), nowhere, f"--user-data-dir={folder}", "--window-size=1100,800", "about:blank"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        port_file = folder / "DevToolsActivePort"
        for _ in range(600):
            if port_file.is_file() and port_file.read_text():
                break
            await asyncio.sleep(0.1)
        port = port_file.read_text().split()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [target for target in await answer.json() if target["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Network", "Runtime"):
                    await page.send(f"{domain}.enable")
                scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
                await page.send("Emulation.setEmulatedMedia", features=[scheme])
                await page.send("Page.navigate", url=address)
                yield page
    finally:
        process.terminate()
        await process.wait()
