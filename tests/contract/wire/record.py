"""Where the bytes are on record."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[2] / "fixtures/wire"


def recorded() -> Iterator[tuple[str, str]]:
    """Yield (version, name) of every file."""
    for path in sorted(FOLDER.glob("v*/*.bin")):
        yield path.parent.name, path.stem


def bytes_of(version: str, name: str) -> bytes:
    """Return what a file holds."""
    return (FOLDER / version / f"{name}.bin").read_bytes()
