"""The golden record on disk, and how two runs of a scene differ."""

import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.golden.play import Scene, play

RECORD: Final = Path(__file__).parents[1] / "fixtures" / "golden" / "record.jsonl.xz"
Line = dict[str, Any]


def write_record(scenes: Sequence[Scene]) -> None:
    """Play these scenes and store their lines in place of what was stored of them."""
    record = read_record() if RECORD.exists() else {}
    record |= {scene.name: play(scene) for scene in scenes}
    RECORD.parent.mkdir(exist_ok=True)
    with lzma.open(RECORD, "wb") as file:
        for name, lines in record.items():
            for line in lines:
                text = json.dumps({"scene": name, **line}, sort_keys=True, separators=(",", ":"))
                file.write(text.encode() + b"\n")


def read_record() -> dict[str, list[Line]]:
    """Return the stored lines by scene."""
    record: dict[str, list[Line]] = {}
    with lzma.open(RECORD, "rb") as file:
        for text in file:
            line = json.loads(text)
            record.setdefault(line.pop("scene"), []).append(line)
    return record


def differences(stored: list[Line], scene: Scene) -> list[str]:
    """Play a scene; return a line for each place where it differs from what is stored."""
    lines = play(scene)
    found = [] if len(stored) == len(lines) else [f"{len(lines)} lines, {len(stored)} stored"]
    for number, (before, now) in enumerate(zip(stored, lines, strict=False)):
        found += [f"{number}: {one}" for one in _between(before, now, "")]
    return found


def _between(before: Any, now: Any, place: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _between(before.get(key), now.get(key), f"{place}.{key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _between(one, other, f"{place}[{number}]")
    elif before != now:
        yield f"{place}: stored {_short(before)}, now {_short(now)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text)} characters)"
