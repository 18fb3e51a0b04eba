"""Download a tokenizer, BASE-URL DIRECTORY FILE…; the model must have the first of the files."""

import pathlib
import sys
import time
import urllib.error
import urllib.request

BASE, DIRECTORY, *FILES = sys.argv[1:]
TOKEN = pathlib.Path("/run/secrets/kvmesh-hub/token")
ATTEMPTS = 5
LACKING = {404, 410}
TRANSIENT = {429, 500, 502, 503, 504}


def fetch(name: str) -> bytes | None:
    """Return the file's bytes, None where the model does not have it."""
    request = urllib.request.Request(f"{BASE}/{name}")
    if TOKEN.exists():
        # Not sent on to the storage that the hub redirects to.
        request.add_unredirected_header("authorization", f"Bearer {TOKEN.read_text().strip()}")
    for attempt in range(ATTEMPTS):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            if error.code in LACKING:
                return None
            if error.code not in TRANSIENT or attempt == ATTEMPTS - 1:
                raise SystemExit(f"{BASE}/{name}: {error.code} {error.reason}") from error
        except OSError as error:
            if attempt == ATTEMPTS - 1:
                raise SystemExit(f"{BASE}/{name}: {error}") from error
        time.sleep(2**attempt)
    return None


directory = pathlib.Path(DIRECTORY)
directory.mkdir(parents=True, exist_ok=True)
for number, name in enumerate(FILES):
    content = fetch(name)
    if content is not None:
        (directory / name).write_bytes(content)
    elif number == 0:
        raise SystemExit(f"{BASE}/{name}: the model has no such file")
    print(name, "absent" if content is None else f"{len(content)} bytes")
