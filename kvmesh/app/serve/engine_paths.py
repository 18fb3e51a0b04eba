"""Paths by which operators change engines, and what becomes of the answers."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

import msgspec

from kvmesh.app.front.admin_guard import TOKEN_HEADER
from kvmesh.bounds import UNREADABLE, MaybeName
from kvmesh.core.admission.paths import ROWS
from kvmesh.core.members.outcomes import SUCCESS
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers

RESETS: Final = frozenset({"/reset_prefix_cache", "/flush_cache"})
SLEEPS: Final = frozenset({"/sleep", "/pause", "/pause_generation", "/release_memory_occupation"})
WAKES: Final = frozenset(
    {"/wake_up", "/resume", "/continue_generation", "/resume_memory_occupation"}
)
WEIGHTS: Final = frozenset(
    {
        "/update_weights",
        "/update_weights_from_disk",
        "/update_weights_from_distributed",
        "/update_weights_from_ipc",
        "/update_weights_from_tensor",
    }
)
LOADS: Final = frozenset({"/v1/load_lora_adapter", "/load_lora_adapter"})
UNLOADS: Final = frozenset({"/v1/unload_lora_adapter", "/unload_lora_adapter"})
OPERATED: Final = frozenset(row.path for row in ROWS if row.owner == "operate")
"""Served by POST."""

ASKED: Final = b"x-kvmesh-asked"
"""Of a meta-router that asks several replicas: the workers whose engines were asked before, and
what they answered, `w0=200,w1=500`.
"""

_STATUS: Final = re.compile(r"[1-5][0-9]{2}")
MOST_TEXT: Final = 2_000
"""Bytes of an answer that is no JSON."""

TIMEOUT_S: Final = 300.0
"""For one engine's answer."""

_OK: Final = 200
_SOME: Final = 207
BAD_GATEWAY: Final = 502


class EngineAnswer(msgspec.Struct, frozen=True):
    """What one engine answered; `body` is JSON, or text where it is none."""

    status: int
    body: object


class Answers(msgspec.Struct, frozen=True):
    """Those of all engines that were asked, by worker."""

    workers: dict[str, EngineAnswer]

    def status(self) -> int:
        """Return 200 where all succeeded, 207 where some did, else what all answered, or 502."""
        found = {one.status for one in self.workers.values()}
        good = {one for one in found if one in SUCCESS}
        if found == good:
            return _OK
        if good:
            return _SOME
        return found.pop() if len(found) == 1 else BAD_GATEWAY


class _Adapter(msgspec.Struct):
    lora_name: MaybeName = ""


def asked_before(request: Request) -> dict[str, int]:
    """Return who was asked before, and what they answered."""
    sent = (request.header(ASKED) or b"").decode("latin-1")
    pairs = (one.rpartition("=") for one in sent.split(","))
    return {name: int(status) for name, _, status in pairs if name and _STATUS.fullmatch(status)}


def in_header(answers: Mapping[str, EngineAnswer]) -> bytes:
    """Return the value of `ASKED`."""
    return ",".join(f"{name}={one.status}" for name, one in answers.items()).encode("latin-1")


def keys_of(request: Request, own: Headers) -> Headers:
    """Return the headers by which a client shows who it is, without those that are sent in their
    place.
    """
    shown = {b"authorization", b"x-api-key", TOKEN_HEADER}.difference(name for name, _ in own)
    return [one for one in request.headers if one[0] in shown]


def adapter_of(body: bytes) -> str:
    """Return the adapter that a body names, "" for none."""
    try:
        return msgspec.json.decode(body, type=_Adapter).lora_name
    except UNREADABLE:
        return ""


def is_whole_wake(query: str) -> bool:
    """Return whether an engine that wakes so can serve: with tags only a part of it wakes, of
    which its KV cache comes last.
    """
    tags = parse_qs(query).get("tags", ["kv_cache"])
    return "kv_cache" in tags
