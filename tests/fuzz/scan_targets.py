"""The compiled scan of a request body: what the strict parser and the byte tokenizer say."""

import random
from collections.abc import Callable, Iterator
from typing import Final

from kvmesh._native import ask_usage, scan_json, scan_tokens
from kvmesh._native import scan as native_scan
from kvmesh.core.prompts.json_size import BETWEEN
from tests.fuzz.http_targets import cut
from tests.fuzz.stories.json_bodies import build_body
from tests.reference.prompts import body_scan as naive
from tests.reference.prompts import json_size as reference_size

PIECES: Final = 0x80
"""With this bit in the first byte, each other byte stands for a piece of JSON."""

BODIES: Final = 0xC0
"""From this first byte on, the others choose the members of a body."""

NAMES: Final = (
    *("model", "stream", "messages", "prompt", "input_ids", "tools", "documents", "n", "user"),
    *("max_tokens", "max_completion_tokens", "priority", "cache_salt", "lora_path", "kvmesh"),
    *("tool_choice", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt"),
    *("continue_final_message", "role", "content", "name", "tool_calls", "tool_call_id", "type"),
    *("text", "refusal", "thinking", "function", "assistant", "tool", "input_text", "image_url"),
    *("stream_options", "include_usage"),
)
FRAGMENTS: Final[tuple[bytes, ...]] = (
    *(b'{"messages":[', b'{"role":"user","content":"', b'"},', b'"}]}', b'{"prompt":"', b'"}'),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\n", b"null", b"true", b"false"),
    *(b"0", b"1", b"-", b".", b"e", b"5", b"999", b"12.5", b"-0.0", b"1e999", b"2147483648"),
    *(b"\\u", b"00e9", b"\\ud83d", b"\\ude00", b"\\n", b"\\/", b'\\"', b"\\u0001", b"\x1f"),
    *(b"\xc3", b"\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xe2\x82", b"\xac", b"\x7f", b"a"),
    *(b"some text of more than sixteen bytes", b"[" * 20, b"]" * 20, b'{"a":' * 20, b"}" * 20),
    *(f'"{name}":'.encode() for name in NAMES),
    *(f'"{name}"'.encode() for name in NAMES),
)


def scan(data: bytes) -> None:
    """Scan a body both ways: what the compiled one does not leave, they agree about."""
    if data and data[0] >= BODIES:
        data = build_body(data[1:])
    elif data and data[0] >= PIECES:
        data = b"".join(FRAGMENTS[piece % len(FRAGMENTS)] for piece in data[1:])
    found = scan_tokens(data)
    assert found is None or found == naive.scan_tokens(data)
    assert naive.agrees(data)
    asked = ask_usage(data, False)
    assert asked is None or b'"include_usage":true' in asked
    for chat in (False, True):
        kept = native_scan(data, chat)
        assert kept is None or kept.body is data


def json_size(data: bytes) -> None:
    """Count the values of a body's pieces both ways, from where the piece before ended."""
    _, pieces = cut(data)
    state, depth = BETWEEN, 0
    for piece in pieces:
        counted = scan_json(piece, state, depth)
        assert counted == reference_size.scan_json(piece, state, depth)
        *_, state, depth = counted


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {"scan": scan, "json_size": json_size}


def seeds(target: str) -> Iterator[bytes]:
    """Yield bodies as they are, and one of pieces."""
    if target == "json_size":
        yield b'\x05\x09\x20{"a":[1,-2.5e3,"x\\\\","\\""],"b":{"c":null}}'
        return
    yield (
        b'{"model":"m","messages":[{"role":"system","content":"caf\xc3\xa9 \\u00e9\\n"},'
        b'{"role":"user","content":[{"type":"text","text":"hi"}],"name":"bob"}],"max_tokens":5,'
        b'"n":2,"tools":[{"type":"function","function":{"name":"f","x":[1,0.5]}}],"stream":true}'
    )
    yield (
        b'{"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{}}]},'
        b'{"role":"tool","tool_call_id":"c","content":"\\ud83d\\ude00"}],"priority":-1,'
        b'"chat_template_kwargs":{"a":1},"continue_final_message":false,"user":"u"}'
    )
    yield b' { "prompt" : "a\\tb" , "stream":false, "max_tokens" : 7, "stop":["x"] } \n'
    yield b'{"prompt":[1,2,3],"n":1,"n":2}'
    rng = random.Random(7)
    for length in range(4, 84):
        yield bytes([BODIES]) + rng.randbytes(length)
    yield bytes([PIECES, 0, 1, 50, 2, 1, 31, 32, 3])
