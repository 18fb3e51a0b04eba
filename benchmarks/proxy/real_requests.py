"""Requests as clients send them: heads that differ from one to the next, bodies in their forms.

Each is made of a number: bodies share 200 beginnings, heads repeat after some hundred requests or
never.
"""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from benchmarks.proxy.chats import Chats, prose
from benchmarks.proxy.load import PATH

SESSIONS: Final = 200
KEY: Final = "bench-key-of-a-client"
TURNS: Final = 12
LONG_TURNS: Final = 120
Made = Callable[[int], bytes]
"""What a request of that number has."""


def varying(number: int) -> bytes:
    return b"x-foo: bar-%d\r\n" % number


def keyed(number: int) -> bytes:
    return b"authorization: Bearer %b\r\n" % KEY.encode() + varying(number)


def session(number: int) -> bytes:
    return b"x-kvmesh-session: s%d\r\n" % (number % SESSIONS)


def agent_session(number: int) -> bytes:
    return b"x-claude-code-session-id: 0123abcd-0000-4000-8000-%012d\r\n" % (number % SESSIONS)


def urgent(number: int) -> bytes:
    return b"x-kvmesh-priority: 3\r\nx-kvmesh-slo-ttft-ms: 20000\r\n" + varying(number)


def patient(number: int) -> bytes:
    return b"x-kvmesh-timeout-s: 60\r\n" + varying(number)


def all_wishes(number: int) -> bytes:
    return keyed(number) + session(number)


def sdk(number: int) -> bytes:
    """Return the head of the `openai` package's client, with a request id of its own."""
    return (
        b"accept-encoding: gzip, deflate\r\nx-stainless-lang: python\r\n"
        b"x-stainless-package-version: 2.8.1\r\nx-stainless-os: Linux\r\nx-stainless-arch: x64\r\n"
        b"x-stainless-runtime: CPython\r\nx-stainless-runtime-version: 3.12.8\r\n"
        b"x-stainless-async: async:asyncio\r\nx-stainless-retry-count: 0\r\n"
        b"x-stainless-read-timeout: 600\r\nx-request-id: req-%d\r\n" % number
    )


def _part(number: int, size: int) -> str:
    text = prose()
    at = number * 7919 % (len(text) - size)
    return text[at : at + size]


def chat(size: int) -> Made:
    """Return plain chats of about `size` bytes."""
    return Chats(size).body


def _body(messages: list[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 16, **more}).encode()


def _system(number: int, size: int) -> dict[str, Any]:
    shared = number % 200
    return {"role": "system", "content": f"You are assistant {shared}. {_part(shared, size)}"}


def parts(number: int) -> bytes:
    """Return a chat whose content is a list of parts."""
    text = f"Question {number}: {_part(number * 31, 150)}"
    return _body(
        [_system(number, 120), {"role": "user", "content": [{"type": "text", "text": text}]}]
    )


@cache
def _tools() -> list[dict[str, Any]]:
    path = {"type": "string", "description": _part(3, 60)}
    shape = {"type": "object", "properties": {"path": path}, "required": ["path"]}
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": _part(number, 120),
                "parameters": shape,
            },
        }
        for number in range(TURNS)
    ]


def tools(number: int) -> bytes:
    """Return a chat of 4 KB, most of which are tools."""
    text = f"Question {number}: {_part(number * 31, 300)}"
    return _body([_system(number, 240), {"role": "user", "content": text}], tools=_tools())


def agent(number: int) -> bytes:
    """Return the history of an agent that has called tools twelve times, some 20 KB."""
    rng = random.Random(number % SESSIONS)
    messages = [_system(number, 2000), {"role": "user", "content": f"Task {number}"}]
    for turn in range(TURNS):
        call = {"name": "tool_1", "arguments": json.dumps({"path": _part(rng.randrange(999), 60)})}
        made = {"id": f"c{turn}", "type": "function", "function": call}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {
                "role": "tool",
                "tool_call_id": f"c{turn}",
                "content": _part(rng.randrange(9999), 1200),
            },
        ]
    return _body(messages, tools=_tools())


@cache
def _long_beginning(conversation: int) -> list[dict[str, Any]]:
    messages = [_system(conversation, 2000)]
    for number in range(LONG_TURNS):
        messages += [
            {"role": "user", "content": _part(conversation * 997 + number, 2000)},
            {"role": "assistant", "content": _part(conversation * 991 + number * 3, 2000)},
        ]
    return messages


def growing(number: int) -> bytes:
    """Return the next turn of one of eight conversations of 128k tokens, some 480 KB."""
    conversation, turn = number % 8, number // 8
    messages = [*_long_beginning(conversation)]
    for later in range(turn):
        messages += [
            {"role": "user", "content": f"Turn {later}: {_part(conversation + later * 7, 300)}"},
            {"role": "assistant", "content": _part(conversation + later * 11, 300)},
        ]
    last = f"Question {number}: {_part(number, 300)}"
    return _body([*messages, {"role": "user", "content": last}])


def request(head: bytes, body: bytes) -> bytes:
    """Return a whole request."""
    return (
        b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json\r\n"
        b"content-type: application/json\r\nuser-agent: bench/1\r\n%bcontent-length: %d\r\n\r\n%b"
        % (PATH.encode(), head, len(body), body)
    )
