"""What an engine told of its cache and what it reused, in the order they happened.

A recording is a gzipped file of JSON lines: a batch of events as `{"hex": …}`, a request as
`{"prompt": [token ids], "cached": tokens}`, after the batches that were told before it was sent.
`tests/engines/reuse/recording.py` makes them.
"""

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

FIXTURES: Final = Path(__file__).parents[3] / "fixtures" / "engines"


class Recorded(msgspec.Struct, frozen=True):
    """A request: its prompt, and how many tokens of it the engine reused."""

    prompt: list[int]
    cached: int


class Batch(msgspec.Struct, frozen=True):
    """A batch of events, in hex."""

    hex: str


def save(recording: list[Recorded | Batch], path: Path) -> None:
    """Write it; the same recording makes the same bytes."""
    lines = b"".join(msgspec.json.encode(one) + b"\n" for one in recording)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        file.write(lines)
    path.write_bytes(packed.getvalue())


def load(path: Path) -> Iterator[Recorded | Batch]:
    """Yield what `save` wrote."""
    with gzip.open(path, "rb") as file:
        for line in file:
            found = json.loads(line)
            yield Batch(found["hex"]) if "hex" in found else Recorded(**found)
