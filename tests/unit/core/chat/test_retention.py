from typing import Any

import msgspec
import pytest

from kvmesh._native import scan
from kvmesh.core.chat.inference import decode_request
from kvmesh.core.chat.retention import cache_control_s, retention_s

OTHERS: list[Any] = ["1h", "24H", "", "in_memory ", 24, 10**25, None, True, [], {"a": "24h"}]
RETENTIONS: list[tuple[Any, int]] = [
    ("in_memory", 300),
    ("in-memory", 300),
    ("24h", 3600),
    *((said, 0) for said in OTHERS),
]


@pytest.mark.parametrize(("said", "seconds"), RETENTIONS)
def test_a_retention_is_read_alike_by_the_scan_and_by_the_parser(said: Any, seconds: int) -> None:
    body = msgspec.json.encode({"prompt": "a", "prompt_cache_retention": said})

    scanned = scan(body, False)

    assert scanned is not None
    assert (scanned.keep_s, scanned.asks) == (seconds, seconds > 0)
    assert retention_s(decode_request(body).prompt_cache_retention) == seconds


def test_of_two_retentions_the_last_counts() -> None:
    body = b'{"prompt":"a","prompt_cache_retention":"24h","prompt_cache_retention":null}'

    scanned = scan(body, False)

    assert scanned is not None
    assert scanned.keep_s == retention_s(decode_request(body).prompt_cache_retention) == 0


def test_a_retention_that_is_no_json_is_left_to_the_parser() -> None:
    assert scan(b'{"prompt":"a","prompt_cache_retention":"24h}', False) is None


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words} | more


def marked(ttl: Any = None, kind: Any = "ephemeral") -> dict[str, Any]:
    return {"cache_control": {"type": kind} | ({} if ttl is None else {"ttl": ttl})}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({"messages": [user(text("a", **marked()))]}, 300),
        ({"messages": [user(text("a", **marked("5m")))]}, 300),
        ({"messages": [user(text("a", **marked("1h")))]}, 3600),
        ({"messages": [user(text("a", **marked("1h"))), user(text("b", **marked()))]}, 300),
        ({"system": [text("s", **marked("1h"))], "messages": [user(text("a"))]}, 3600),
        ({"messages": [user(text("a"))], "tools": [{"name": "t"} | marked()]}, 300),
        (marked() | {"messages": [user(text("a", **marked("1h")))]}, 3600),
        ({"messages": [user(text("a", **marked("1h")))]} | marked(7), 0),
        ({"messages": [user(text("a", **marked("2h")))]}, 0),
        ({"messages": [user(text("a", **marked("1h", "other")))]}, 0),
        ({"messages": [user(text("a", cache_control=None))]}, 0),
        ({"messages": [user(text("a", cache_control={"type": {}}))]}, 0),
        ({"messages": [user(text('say "cache_control": {"type":"ephemeral"}'))]}, 0),
        ({"messages": [user(text('its name is "cache_control"'))]}, 0),
        ({}, 0),
    ],
)
def test_the_last_mark_of_a_body_of_anthropics_counts(body: dict[str, Any], seconds: int) -> None:
    written = msgspec.json.encode(body)

    assert cache_control_s(written) == seconds
    assert cache_control_s(msgspec.json.format(written, indent=2)) == seconds
