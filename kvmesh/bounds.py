"""Bounds of every number and name from outside: clients, engines, the bus, files, keys, settings.

A struct that a decoder fills names these types: what is beyond them does not decode. Text of
headers and files is read by `whole_number` and `real_number`. Numbers that are an engine's to judge
and only guide routing are brought into range by `clamped`. Within these bounds the core's sums,
products and codecs neither overflow nor yield NaN.
"""

import re
from collections.abc import Collection
from typing import Annotated, Final

from msgspec import Meta, MsgspecError

UNREADABLE: Final = (MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for bytes that are not what it reads: catch all three."""

DEFAULT_MAX_BLOCKS: Final = 1 << 24
"""Blocks that an index holds unless it is told otherwise, whatever the memory."""

MAX_TOKENS: Final = 2**31 - 1
MAX_COUNT: Final = 2**53
"""The largest count that a float, and a JavaScript reader of our JSON, still holds exactly."""

MAX_CHOICES: Final = 2**15
MAX_PRIORITY: Final = 2**15
MAX_WEIGHT: Final = 1e6
MAX_TEMPERATURE: Final = 1e6
MAX_SECONDS: Final = 1e9
"""Some 31 years: longer than any process, short of what timers and tick counts cannot hold."""

MAX_FIGURE: Final = 1e12
"""The most that a number with a fraction may be, whatever its unit."""

MAX_ORDINAL: Final = 2**62
"""Epochs and sequence numbers: half of what 63 bits hold, so that adding never overflows."""

MAX_NAME: Final = 512
"""Characters of a name: a model (a path, perhaps), worker, bucket, tenant, label, formula."""

MAX_NAMES: Final = 1024
"""Names in one list of them: allowed workers, labels, tolerations, models of a worker."""

MAX_MEMBER: Final = 256
"""Characters of a worker's or router's name in a message of the mesh; settings allow 64."""

MAX_MEMBERS: Final = 2**16
"""Workers or routers in one message: as many as a snapshot can tell apart."""

MAX_TEXT: Final = 4096
"""Characters of a sentence somebody else wrote and that is shown to people."""

Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Weight = Annotated[float, Meta(ge=0.0, le=MAX_WEIGHT)]
Temperature = Annotated[float, Meta(ge=0.0, le=MAX_TEMPERATURE)]
Seconds = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]
Figure = Annotated[float, Meta(ge=0.0, le=MAX_FIGURE)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Epoch = Annotated[int, Meta(ge=0, le=MAX_ORDINAL)]
Sequence = Annotated[int, Meta(ge=0, le=MAX_ORDINAL)]
Hash = Annotated[int, Meta(ge=0)]
"""A u64: msgpack holds no more, and `Meta` cannot say so."""

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
MaybeName = Annotated[str, Meta(max_length=MAX_NAME)]
"""A name, or "" for none."""

Names = Annotated[tuple[Name, ...], Meta(max_length=MAX_NAMES)]

Text = Annotated[str, Meta(max_length=MAX_TEXT)]

Member = Annotated[str, Meta(min_length=1, max_length=MAX_MEMBER)]
Members = Annotated[tuple[MaybeName, ...], Meta(max_length=MAX_MEMBERS)]
Port = Annotated[int, Meta(ge=0, le=2**16 - 1)]
Reading = Annotated[int, Meta(ge=-MAX_ORDINAL, le=MAX_ORDINAL)]
"""What an engine counts, in a message of a sidecar of any version: `clamped` before it is used."""

_LONGEST_NUMBER: Final = 40
"""Characters of a number as text: more are refused unread (`int` of many digits is quadratic)."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_REAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\x80-\x9f\u2028\u2029\ud800-\udfff]")


def whole_number(text: str, least: int, most: int) -> int | None:
    """Return the decimal whole number in `text`; None for anything else, and beyond the bounds."""
    if len(text) > _LONGEST_NUMBER or not _WHOLE.fullmatch(text):
        return None
    value = int(text)
    return value if least <= value <= most else None


def real_number(text: str, least: float, most: float) -> float | None:
    """Return the decimal number in `text`; None for anything else, and beyond the bounds."""
    if len(text) > _LONGEST_NUMBER or not _REAL.fullmatch(text):
        return None
    value = float(text)
    return value if least <= value <= most else None


def clamped(value: float, least: int, most: int) -> int:
    """Return `value` as a whole number within the bounds; `least` for NaN."""
    if least < value < most:
        return int(value)
    return most if value >= most else least


def is_name(text: str) -> bool:
    """Return whether `text` may be a name: 1 to `MAX_NAME` characters, none a control character."""
    return 0 < len(text) <= MAX_NAME and _UNPRINTABLE.search(text) is None


MOST_NAMED: Final = 8
"""Members named in a line for people; the others are counted."""


def listed(names: Collection[str]) -> str:
    """Return names as a line shows them, sorted: `MOST_NAMED` and how many more."""
    more = len(names) - MOST_NAMED
    named = ", ".join(sorted(names)[:MOST_NAMED])
    return f"{named} and {more} more" if more > 0 else named


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 worker", "2 workers"; `plural` where an s does not do."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def shown(value: str | float, most: int = 64) -> str:
    """Return a value from outside as an error message or log line shows it: quoted and short."""
    if isinstance(value, str):
        kept = repr(value[:most])
        return kept if len(value) <= most else f"{kept}… ({len(value):,} characters)"
    if isinstance(value, int) and abs(value) >= 10**most:
        return f"a number of more than {most} digits"
    return repr(value)
