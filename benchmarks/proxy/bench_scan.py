"""What the compiled scan of a body costs a whole request, beside msgspec: the figure behind own C.

Requests as in `bench_request`, whose reader is given, in turns: the scan alone; the scan twice; the
scan and msgspec, which leaves the messages raw; the scan and msgspec, which reads each role and
content. A request with msgspec in the scan's place costs what the second to fourth differ by, more
or less than the first. It would cost more than that: the scan also yields token ids of the byte
tokenizer and the spans that templates are packed from, without an object of Python for any text.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import uvloop

from benchmarks.proxy.bench_request import Front
from benchmarks.proxy.chats import HEAD, MIDDLE, TAIL, Chats
from benchmarks.proxy.load import request_bytes
from kvmesh._native import scan as native_scan
from kvmesh.app.prompts import reading

CONNECTIONS: Final = 16
BODIES: Final = 64


class _Message(msgspec.Struct):
    role: str
    content: str


class _Rest(msgspec.Struct):
    model: str = ""
    stream: bool = False
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    priority: int | None = None
    user: str | None = None
    cache_salt: str | None = None
    lora_path: str | None = None
    prompt_cache_key: str | None = None
    tools: msgspec.Raw | None = None
    documents: msgspec.Raw | None = None
    tool_choice: msgspec.Raw | None = None
    chat_template_kwargs: msgspec.Raw | None = None


class _Raw(_Rest):
    messages: msgspec.Raw = msgspec.Raw(b"[]")


class _Typed(_Rest):
    messages: list[_Message] = []


_raw, _typed = msgspec.json.Decoder(_Raw).decode, msgspec.json.Decoder(_Typed).decode


def _with(first: Callable[[bytes], object]) -> Callable[[bytes, bool], Any]:
    def scan(body: bytes, chat: bool) -> Any:
        first(body)
        return native_scan(body, chat)

    return scan


WAYS: Final[dict[str, Callable[[bytes, bool], Any]]] = {
    "scan": _with(len),
    "scan twice": _with(lambda body: native_scan(body, True)),
    "scan + msgspec raw": _with(_raw),
    "scan + msgspec typed": _with(_typed),
}


def bodies(kind: str) -> list[bytes]:
    """Return bodies that differ, of one kind."""
    if kind.isdigit():
        chats = Chats(int(kind))
        return [chats.body(number) for number in range(BODIES)]
    text = "\U0001f600 caf\xe9 " * 300 if kind == "emoji" else r"say \"hi\"\n\tand \u00e9 " * 150
    return [
        f"{HEAD}You are {n}. {text}{MIDDLE}Question {n}: {text}{TAIL}".encode()
        for n in range(BODIES)
    ]


async def measure(kind: str, rounds: int, turns: int) -> dict[str, float]:
    """Return the least processor time of a request by each way, us."""
    requests = [request_bytes(body) for body in bodies(kind)]
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    front = Front(CONNECTIONS)
    front.serve(requests, rounds)
    gc.collect()
    gc.freeze()
    for _ in range(turns):
        for way, scan in WAYS.items():
            vars(reading)["scan"] = scan
            began = time.process_time_ns()
            served = front.serve(requests, rounds)
            spent[way].append((time.process_time_ns() - began) / served / 1000)
    front.close()
    return {way: statistics.quantiles(all_, n=10)[0] for way, all_ in spent.items()}


def main() -> None:
    """Print a row for each kind of body."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="*", default=["400", "4000", "100000", "emoji", "escapes"])
    parser.add_argument("--turns", type=int, default=40)
    chosen = parser.parse_args()
    for kind in chosen.kind:
        size = len(bodies(kind)[0])
        rounds = max(2, 100_000 // (size + 400) // CONNECTIONS * 4)
        found = uvloop.run(measure(kind, rounds, chosen.turns))
        base, twice, raw, typed = found.values()
        sys.stdout.write(
            f"{kind:8} {size:7} B  request {base:8.2f} us, the scan {twice - base:7.2f},"
            f" msgspec raw {raw - base:7.2f}, typed {typed - base:7.2f};"
            f" in place of the scan: raw {100 * (raw - twice) / base:+.1f} %,"
            f" typed {100 * (typed - twice) / base:+.1f} %\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
