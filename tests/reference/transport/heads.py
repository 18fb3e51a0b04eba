"""The naive model of kvmesh/native/wire/heads.c: heads that come again and again."""

import re
from typing import Final

_DIGITS: Final = re.compile(rb"[0-9]{1,12}")


def match_head(data: bytes, before: bytes, behind: bytes | None, most: int) -> bytes | None:
    """Return what `_native.match_head` does."""
    if behind is None:
        return b"" if data == before else None
    digits = _DIGITS.match(data, len(before)) if data.startswith(before) else None
    if digits is None or not data.startswith(behind, digits.end()):
        return None
    body = data[digits.end() + len(behind) :]
    return body if len(body) == int(digits[0]) <= most else None
