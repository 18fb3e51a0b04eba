"""Ask a front door, URL [MODEL]: it becomes ready, lists a model and completes a prompt."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from typing import Any

URL, MODEL = sys.argv[1], "".join(sys.argv[2:])
PATIENCE_S = 120
# The certificate is the front door's own affair here: it need not name the Service.
TLS = ssl.create_default_context()
TLS.check_hostname, TLS.verify_mode = False, ssl.CERT_NONE


def ask(path: str, body: dict[str, Any] | None = None) -> Any:
    """Return the answer's JSON, or its bytes."""
    request = urllib.request.Request(
        f"{URL}{path}", data=json.dumps(body).encode() if body else None
    )
    request.add_header("content-type", "application/json")
    if key := os.environ.get("KVMESH_API_KEY"):
        request.add_header("authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=60, context=TLS) as answer:
        text = answer.read()
        return json.loads(text) if text.startswith((b"{", b"[")) else text


def wait_until_ready() -> None:
    """Return when /ready says 200; exit with its last words otherwise."""
    end, last = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < end:
        try:
            ask("/ready")
        except urllib.error.HTTPError as error:
            last = f"{error.code} {error.read().decode(errors='replace')[:500]}"
        except OSError as error:
            last = str(error)
        else:
            return
        time.sleep(1)
    raise SystemExit(f"{URL}/ready: {last}")


wait_until_ready()
try:
    model = MODEL or ask("/v1/models")["data"][0]["id"]
    answer = ask("/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 4})
except urllib.error.HTTPError as error:
    raise SystemExit(
        f"{error.url}: {error.code} {error.read().decode(errors='replace')[:500]}"
    ) from error
print(f"{model} answered {answer['choices'][0]['text']!r}")
