"""Which agent a request comes from, and which program that is part of, as clients say it.

Clients that know nothing of kvmesh name their sessions by headers of their own, or in the body. A
name of theirs that is none (empty, too long, control characters) is passed over: the request is
served as it would be without it. What is said to kvmesh has to be right.

Source (read 2026-11): headers of Claude Code 2.1.139, codex-rs/core/src/client.rs, OpenCode's
session/llm.ts, Dynamo's pages "Session IDs" and "Agent Hints", aiperf's transports.
"""

import re
from typing import Final

import msgspec

from kvmesh.bounds import MAX_PRIORITY, MAX_TOKENS, UNREADABLE, clamped, is_name, shown
from kvmesh.core.chat.inference import Extension, Parsed
from kvmesh.core.programs.turn import Client
from kvmesh.core.routing.sessions import (
    CLAUDE,
    CODEX,
    DYNAMO,
    OPENCODE,
    PROGRAM,
    SMG,
    session_key,
)
from kvmesh.errors import RequestError

MAX_PROGRAM: Final = 256
"""Bytes of an agent's or program's name."""

PARENT: Final = b"x-kvmesh-program-parent"
FINAL: Final = b"x-kvmesh-program-final"
OWN_HEADERS: Final = frozenset((PROGRAM, PARENT, FINAL))

_CLAUDE_AGENT: Final = b"x-claude-code-agent-id"
DYNAMO_PARENT: Final = b"x-dynamo-parent-session-id"
_DYNAMO_FINAL: Final = b"x-dynamo-session-final"
_CODEX_THREAD: Final = b"thread-id"
_CODEX_PARENT: Final = b"x-codex-parent-thread-id"
OPENCODE_PARENT: Final = b"x-parent-session-id"
AIPERF: Final = b"x-correlation-id"

NAMING_HEADERS: Final = OWN_HEADERS | {
    *(CLAUDE, _CLAUDE_AGENT, DYNAMO, DYNAMO_PARENT, _DYNAMO_FINAL),
    *(*CODEX, _CODEX_THREAD, _CODEX_PARENT, *OPENCODE, OPENCODE_PARENT, SMG, AIPERF),
}
"""`x-correlation-id` names a session where aiperf sends it: gateways give each request its own."""

_UNIQUE: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|ses_[0-9A-Za-z]{16,64}",
    re.IGNORECASE,
)
"""Ids of sessions among prompt cache keys, of Codex and OpenCode. Other keys are often one for all
users of an application: not an agent."""

_CLAUDE_USER: Final = re.compile(r"_session_([0-9a-fA-F-]{8,64})$")
_STRICT_STEP: Final = 1000
"""Priorities within one step of `strict_priority`."""

_TRUTHS: Final = {"1": True, "true": True, "0": False, "false": False, "": False}

_text: Final = msgspec.json.Decoder(str)

Selected = dict[bytes, bytes]
"""Headers of `NAMING_HEADERS` that a request has."""


class TurnNames(msgspec.Struct, frozen=True):
    """Whose turn a request is: `session_key`s of the agent and of the program it is part of, which
    are equal for an agent that names no parent. `final`: no other turn will follow.

    Where a client names only the parent and not the root, `program` is the parent: the table of
    agents knows the parent's own program.
    """

    agent: str
    program: str
    client: Client
    final: bool = False


class Hints(msgspec.Struct, frozen=True):
    """`nvext.agent_hints`, brought into range: `priority` larger first, `output_tokens` expected,
    None each for what is not said. `speculative_prefill`: the next turn's prefix may be computed
    ahead.
    """

    priority: int | None = None
    output_tokens: int | None = None
    speculative_prefill: bool = False


NO_HINTS: Final = Hints()


class _Hints(msgspec.Struct):
    priority: object = None
    strict_priority: object = None
    osl: object = None
    speculative_prefill: object = None


class _Nvext(msgspec.Struct):
    agent_hints: _Hints | None = None


class _Metadata(msgspec.Struct):
    user_id: object = ""


class _ClaudeUser(msgspec.Struct):
    session_id: object = ""


_nvext: Final = msgspec.json.Decoder(_Nvext)
_metadata: Final = msgspec.json.Decoder(_Metadata)
_claude_user: Final = msgspec.json.Decoder(_ClaudeUser)


def head_names(
    selected: Selected, session: str, tenant: str, user_agent: bytes = b""
) -> TurnNames | None:
    """Return whose turn a request is by its headers; None where they do not say.

    `session` is the configured header's. Raises `RequestError` for a header of ours that is wrong.
    """
    final = _truth(selected)
    own, parent = _own(selected, PROGRAM), _own(selected, PARENT)
    if own or session:
        return names_of(own or session, parent if own else "", "kvmesh", tenant, final)
    return _foreign(selected, tenant, final) or _of_aiperf(selected, tenant, final, user_agent)


def own_names(extension: Extension, head: TurnNames | None, tenant: str) -> TurnNames | None:
    """Return whose turn a request is by the body's field `kvmesh`, over what its headers say.

    Raises `RequestError` for a name that is too long.
    """
    final = extension.program_final or (head is not None and head.final)
    for name in (extension.program, extension.program_parent):
        if name is not None:
            _check(name, len(name.encode("utf-8", "surrogatepass")), "kvmesh.program")
    by_header = head is not None and head.client == "kvmesh"
    if extension.program and not by_header:
        return names_of(extension.program, extension.program_parent or "", "kvmesh", tenant, final)
    if extension.session and not by_header:
        return names_of(extension.session, "", "kvmesh", tenant, final)
    return (
        head if head is None or head.final == final else msgspec.structs.replace(head, final=True)
    )


def body_names(parsed: Parsed, path: str, cache_key: str, tenant: str) -> TurnNames | None:
    """Return whose turn a request is by fields of its body that other servers know: Claude Code's
    `metadata.user_id` in messages, Codex' and OpenCode's `prompt_cache_key`.
    """
    if parsed.metadata and path.endswith("/messages"):
        try:
            user = _metadata.decode(parsed.metadata).user_id
        except UNREADABLE:
            user = ""
        session = _claude_session(user) if isinstance(user, str) else ""
        if session:
            return names_of(session, "", "claude-code", tenant)
    return key_names(cache_key, tenant)


def cache_key_of(parsed: Parsed) -> str:
    """Return a body's `prompt_cache_key`, "" for what is no text."""
    try:
        return _text.decode(parsed.prompt_cache_key)
    except UNREADABLE:
        return ""


def key_names(cache_key: str, tenant: str) -> TurnNames | None:
    """Return whose turn a request with a prompt cache key is; None for a key that names more."""
    if not _UNIQUE.fullmatch(cache_key):
        return None
    client: Client = "opencode" if cache_key.startswith("ses_") else "codex"
    return names_of(cache_key, "", client, tenant)


def read_hints(nvext: msgspec.Raw) -> Hints:
    """Return what `nvext.agent_hints` says; what is of no use there says nothing."""
    try:
        hints = _nvext.decode(nvext).agent_hints
    except UNREADABLE:
        return NO_HINTS
    if hints is None:
        return NO_HINTS
    priority = _number(hints.priority, MAX_PRIORITY)
    strict = _number(hints.strict_priority, MAX_PRIORITY)
    if priority is not None or strict is not None:
        half = _STRICT_STEP // 2 - 1
        within = clamped(priority or 0, -half, half) if strict else priority or 0
        priority = clamped(_STRICT_STEP * (strict or 0) + within, -MAX_PRIORITY, MAX_PRIORITY)
    tokens = _number(hints.osl, MAX_TOKENS)
    return Hints(
        priority=priority,
        output_tokens=tokens if tokens is not None and tokens > 0 else None,
        speculative_prefill=hints.speculative_prefill is True,
    )


def names_of(
    agent: str, parent: str, client: Client, tenant: str, final: bool = False
) -> TurnNames:
    """Return the keys of an agent's name and of its parent's, "" for none."""
    key = session_key(agent, tenant)
    return TurnNames(key, session_key(parent, tenant) if parent else key, client, final)


def _foreign(selected: Selected, tenant: str, final: bool) -> TurnNames | None:
    if session := _name(selected, CLAUDE):
        agent = _name(selected, _CLAUDE_AGENT)
        # A sub-agent's id is one within its session, which is the program of all of them.
        agent, parent = (f"{session}\0{agent}", session) if agent else (session, "")
        return names_of(agent, parent, "claude-code", tenant, final)
    if session := _name(selected, DYNAMO):
        ends = final or selected.get(_DYNAMO_FINAL, b"").strip().lower() in {b"1", b"true"}
        return names_of(session, _name(selected, DYNAMO_PARENT), "dynamo", tenant, ends)
    session, thread = _first(selected, CODEX), _name(selected, _CODEX_THREAD)
    if session or (thread and _CODEX_PARENT in selected):
        parent = session if thread != session else ""
        parent = parent or _name(selected, _CODEX_PARENT)
        return names_of(thread or session, parent if thread else "", "codex", tenant, final)
    if session := _first(selected, OPENCODE):
        return names_of(session, _name(selected, OPENCODE_PARENT), "opencode", tenant, final)
    if session := _name(selected, SMG):
        return names_of(session, "", "smg", tenant, final)
    return None


def _of_aiperf(selected: Selected, tenant: str, final: bool, user_agent: bytes) -> TurnNames | None:
    session = _name(selected, AIPERF) if user_agent.startswith(b"aiperf") else ""
    return names_of(session, "", "aiperf", tenant, final) if session else None


def _claude_session(user: str) -> str:
    """Return the session in a user id of Claude Code: `user_…_account_…_session_<uuid>`, or newer
    ones' JSON with a `session_id`; "" for any other.
    """
    if len(user) > _LONGEST_USER:
        return ""
    if user.startswith("{"):
        try:
            session = _claude_user.decode(user).session_id
        except UNREADABLE:
            return ""
        if not isinstance(session, str) or not is_name(session):
            return ""
        return session if len(session.encode("utf-8", "replace")) <= MAX_PROGRAM else ""
    found = _CLAUDE_USER.search(user)
    return found[1] if found else ""


_LONGEST_USER: Final = 1024


def _first(selected: Selected, names: tuple[bytes, ...]) -> str:
    return next((found for name in names if (found := _name(selected, name))), "")


def _name(selected: Selected, header: bytes) -> str:
    """Return the name in a header of others, "" for none and for what is no name."""
    value = selected.get(header)
    if value is None:
        return ""
    text = value.decode("latin-1").strip()
    return text if len(text) <= MAX_PROGRAM and is_name(text) else ""


def _own(selected: Selected, header: bytes) -> str:
    value = selected.get(header)
    if value is None:
        return ""
    text = value.decode("latin-1").strip()
    if text:
        _check(text, len(text), header.decode())
    return text


def _check(text: str, size: int, place: str) -> None:
    if size > MAX_PROGRAM or (text and not is_name(text)):
        raise RequestError(
            f"{place} is {shown(text)}: the name of a program has at most {MAX_PROGRAM} bytes, "
            "none of them a control character",
            param=place,
        )


def _truth(selected: Selected) -> bool:
    text = selected.get(FINAL, b"").decode("latin-1").strip()
    found = _TRUTHS.get(text.lower())
    if found is None:
        raise RequestError(
            f"header {FINAL.decode()} is {shown(text)}: use 1 or 0", param=FINAL.decode()
        )
    return found


def _number(value: object, most: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return clamped(value, -most, most)
