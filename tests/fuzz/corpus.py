"""Inputs that fuzzing found to reach code of their own: a file a target, one in base64 a line."""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

KEPT = Path(__file__).parent / "corpus"


def kept(target: str) -> list[bytes]:
    """Return what is kept for `target`; nothing when it was never fuzzed."""
    path = KEPT / f"{target}.txt"
    return [b64decode(line) for line in path.read_text().split()] if path.exists() else []


def keep(target: str, inputs: Iterable[bytes]) -> None:
    """Keep `inputs` for `target` instead of what was kept, shortest first."""
    lines = [
        b64encode(one).decode() for one in sorted(set(inputs), key=lambda one: (len(one), one))
    ]
    (KEPT / f"{target}.txt").write_text("\n".join(lines) + "\n")
