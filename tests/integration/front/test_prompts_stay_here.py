"""What a router does not do with a request: log it, write it down, follow an engine's redirect."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.integration.support.live_router import READY_S, free_port

pytestmark = pytest.mark.integration

WORD = "xyzzy-plugh-0451"
MOVED = "http://127.0.0.1:9/elsewhere"


class Engine(BaseHTTPRequestHandler):
    """An engine whose completions are somewhere else, and whose chats fail."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200, b'{"data": [{"id": "mock"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer(500 if "chat" in self.path else 307, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if status == 307:
            self.send_header("location", MOVED)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def engine() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def wait_for(client: httpx.Client) -> None:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(httpx.HTTPError):
            if client.get("/ready").status_code == 200:
                return
        time.sleep(0.05)
    pytest.fail("the router is not ready")


@pytest.mark.parametrize("shape", ["console", "json"])
def test_no_prompt_is_logged_or_written_and_no_redirect_followed(
    shape: str, engine: str, tmp_path: Path
) -> None:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "tests.fixed_flags",
        "router",
        "--no-kv-events",
        "--worker",
        f"w={engine}",
    ]
    options = ["--http-port", str(port), "--log-level", "debug", "--log-format", shape]
    log = tmp_path / "router.log"
    place = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [*command, *options], cwd=tmp_path, env=place, stdout=out, stderr=out
        ) as router,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
    ):
        try:
            wait_for(client)
            body = {"model": "mock", "prompt": WORD * 20, "cache_salt": WORD, "user": WORD}
            moved = client.post("/v1/completions", json=body)
            turns = [{"role": "user", "content": WORD}]
            failed = client.post("/v1/chat/completions", json={**body, "messages": turns})
            bad = client.post("/v1/completions", content=b'{"prompt": "' + WORD.encode())
        finally:
            router.terminate()

    assert (moved.status_code, moved.json()["error"]["code"]) == (502, "upstream_redirect")
    assert "location" not in moved.headers
    assert "w answered 307" in moved.text
    assert MOVED not in moved.text
    assert (failed.status_code, bad.status_code) == (500, 400)
    assert len(log.read_bytes()) > 1000
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if WORD.encode() in path.read_bytes()]
