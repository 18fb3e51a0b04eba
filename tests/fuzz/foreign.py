"""Seeds made of inputs that others wrote for their own decoders: tests/fuzz/foreign/README.md."""

from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

CORPORA: Final = Path(__file__).parent / "foreign"


def _inputs(name: str) -> list[bytes]:
    return [b64decode(line) for line in (CORPORA / f"{name}.txt").read_text().split()]


def foreign(target: str) -> Iterator[bytes]:
    """Yield what there is for `target`, each within what the target's decoder expects around it."""
    corpus, wrap = FOR.get(target, ("", _plain))
    for one in _inputs(corpus) if corpus else ():
        yield from wrap(one)


def _plain(one: bytes) -> Iterator[bytes]:
    yield b"\x01\x02\x03" + one


def _bodies(value: bytes) -> Iterator[bytes]:
    yield value
    yield b'{"prompt":%b,"model":%b}' % (value, value)
    yield b'{"messages":[{"role":"user","content":%b}],"tools":[%b]}' % (value, value)


def _events(value: bytes) -> Iterator[bytes]:
    yield b'\x05\x07\x09data: {"usage":%b}\n\ndata: [DONE]\n\n' % value


def _batches(value: bytes) -> Iterator[bytes]:
    yield b"\0" + value
    stored = b"\0\x92\xcb\0\0\0\0\0\0\0\0\x91\x9a\xabBlockStored"
    yield stored + b"\x91" + value + b"\xc0\x91" + value + b"\x04\xc0" + value + value


def _frames(story: bytes) -> Iterator[bytes]:
    frames = bytearray(b"\1\2\3")
    for number, line in enumerate(story.split()):
        block = bytes.fromhex(line.decode())
        frames += len(block).to_bytes(3, "big") + b"\1\5" + (2 * number + 1).to_bytes(4, "big")
        frames += block
    yield bytes(frames)


FOR: Final[dict[str, tuple[str, Callable[[bytes], Iterator[bytes]]]]] = {
    "scan": ("json", _bodies),
    "body": ("json", _bodies),
    "json_size": ("json", _plain),
    "sse": ("json", _events),
    "engine_cache": ("msgpack", _batches),
    "grpc": ("hpack", _frames),
    "grpc_answers": ("hpack", _frames),
}
