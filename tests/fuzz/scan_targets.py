"""The compiled scan of a request body: what the strict parser and the byte tokenizer say."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from kvmesh.core.prompts.body_scan import (
    pure_scan_body,
    pure_scan_messages,
    pure_scan_tokens,
    scan_body,
    scan_messages,
    scan_tokens,
)

PIECES: Final = 0x80
"""With this bit in the first byte, each other byte stands for a piece of JSON."""

NAMES: Final = (
    *("model", "stream", "messages", "prompt", "input_ids", "tools", "documents", "n", "user"),
    *("max_tokens", "max_completion_tokens", "priority", "cache_salt", "lora_path", "kvmesh"),
    *("tool_choice", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt"),
    *("continue_final_message", "role", "content", "name", "tool_calls", "tool_call_id", "type"),
    *("text", "refusal", "thinking", "function", "assistant", "tool", "input_text", "image_url"),
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
SCANS: Final[tuple[tuple[Callable[[bytes], Any], Callable[[bytes], Any]], ...]] = (
    (scan_body, pure_scan_body),
    (scan_tokens, pure_scan_tokens),
    (scan_messages, pure_scan_messages),
)


def scan(data: bytes) -> None:
    """Scan a body both ways: what the compiled one does not leave, they agree about."""
    if data and data[0] >= PIECES:
        data = b"".join(FRAGMENTS[piece % len(FRAGMENTS)] for piece in data[1:])
    for compiled, pure in SCANS:
        found = compiled(data)
        assert found is None or found == pure(data), compiled


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {"scan": scan}


def seeds(target: str) -> Iterator[bytes]:
    """Yield bodies as they are, and one of pieces."""
    del target
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
    yield bytes([PIECES, 0, 1, 50, 2, 1, 31, 32, 3])
