"""The looking of `kvmesh doctor`: asks an engine and a router, judges nothing."""

import asyncio
import secrets

import msgspec

from kvmesh.app.members.engine_probe import given_endpoints, identify, read_facts
from kvmesh.app.ops.doctor_events import POLL_S, SourceWatch, until
from kvmesh.app.ops.doctor_router import RouterFacts, Signatures, WorkerFacts
from kvmesh.app.prompts.tokenizer import Tokenizer
from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.engines.engine import Engine
from kvmesh.core.engines.facts import EngineFacts, Identity
from kvmesh.core.engines.kv_events.dialect import decoder_of
from kvmesh.core.engines.registry import engine_of
from kvmesh.core.engines.seen import EngineSeen, ProbeSeen
from kvmesh.core.members.block_sizes import SizeSource
from kvmesh.core.prompts.parity import (
    RETURN_IDS_HEADERS,
    ask_for_ids,
    engine_prompt_ids,
    first_difference,
)
from kvmesh.errors import TransportError
from kvmesh.transport.http.fetch import HTTP_OK, fetch, fetch_ok
from kvmesh.transport.http.upstream.client import UpstreamPool

EVENTS_TIMEOUT_S = 2.0
INDEX_TIMEOUT_S = 5.0
PROMPT_TIMEOUT_S = 60.0
PROBE_BLOCKS = 4
WORDS = "one two three four five six seven eight nine ten eleven twelve"


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Mesh(msgspec.Struct):
    kv_events: bool = False
    signatures: Signatures = Signatures()
    versions: dict[str, dict[str, int]] = {}
    unread: tuple[str, ...] = ()


class _Status(msgspec.Struct):
    router: str
    mode: str
    block_size: int
    mesh: _Mesh
    block_size_from: SizeSource = "given"
    block_sizes: tuple[int, ...] = ()
    workers: tuple[WorkerFacts, ...] = ()
    refused: dict[str, str] = {}


class _Ready(msgspec.Struct):
    ready: bool = False
    reason: str = ""


class _Candidate(msgspec.Struct):
    worker: str
    overlap_blocks: int


class _Route(msgspec.Struct):
    prompt_tokens: int
    candidates: tuple[_Candidate, ...] = ()


class Inspection(msgspec.Struct, frozen=True):
    """What to look at. An `endpoint` given by hand replaces those the engine lists."""

    engine_url: str
    endpoint: str = ""
    replay: str = ""
    topic: str = ""
    bind: bool = False
    tokenizer: Tokenizer | None = None
    probe: bool = True


async def probe_engine(pool: UpstreamPool, inspection: Inspection) -> tuple[EngineSeen, bytes]:
    """Return what the engine says and does, and the chat that was sent to it, b"" for none."""
    url = inspection.engine_url
    facts = await read_facts(pool, url)
    if facts is None:
        return EngineSeen(url=url, answers=False), b""
    found = await identify(pool, url)
    if found is None and await fetch_ok(pool, url, "/v1/overview?limit=0") is not None:
        return EngineSeen(url=url, kind="kvmesh"), b""
    kind, identity = found or ("", Identity(version=""))
    endpoints = facts.endpoints
    if inspection.endpoint:
        endpoints = given_endpoints(inspection.endpoint, inspection.replay, facts.ranks)
    decode = decoder_of(kind)
    watches = [
        SourceWatch(one, decode, topic=inspection.topic, bind=inspection.bind) for one in endpoints
    ]
    chat, probe = b"", None
    try:
        await asyncio.gather(*(watch.open() for watch in watches))
        if inspection.probe and facts.models:
            chat = _chat(facts)
            probe = await _probe(pool, inspection, chat, watches, engine_of(kind))
    finally:
        for watch in watches:
            watch.close()
    seen = EngineSeen(
        url=url,
        kind=kind,
        version=identity.version,
        models=facts.models,
        lists_events=identity.lists_events,
        block_size=facts.block_size,
        prefix_caching=identity.prefix_caching,
        sources=tuple(watch.seen() for watch in watches),
        probe=probe,
    )
    return seen, chat if probe is not None and not probe.error else b""


async def probe_router(
    pool: UpstreamPool, url: str, engine: EngineSeen, chat: bytes
) -> RouterFacts:
    """Return the router's status, and what it makes of a chat the engine was sent before."""
    try:
        status, body = await fetch(pool, url, "/v1/status")
        if status != HTTP_OK:
            return RouterFacts(url, error=f"/v1/status answers {status}")
        state = msgspec.json.decode(body, type=_Status)
        _, body = await fetch(pool, url, "/ready")
        ready = msgspec.json.decode(body, type=_Ready)
    except (TransportError, *UNREADABLE) as error:
        return RouterFacts(url, error=str(error))
    mine = {one.worker for one in state.workers if one.url.rstrip("/") == engine.url.rstrip("/")}
    route = await _ask_route(pool, url, chat, mine) if chat else None
    overlaps = {one.worker: one.overlap_blocks for one in route.candidates} if route else None
    return RouterFacts(
        url=url,
        mode=state.mode,
        kv_events=state.mesh.kv_events,
        why_not_ready="" if ready.ready else ready.reason,
        block_size=state.block_size,
        block_size_from=state.block_size_from,
        block_sizes=state.block_sizes,
        workers=state.workers,
        prompt_tokens=route.prompt_tokens if route else None,
        overlap_blocks=overlaps,
        refused=state.refused,
        signatures=state.mesh.signatures,
        versions=state.mesh.versions,
        unread=state.mesh.unread,
    )


def _chat(facts: EngineFacts) -> bytes:
    """Return a chat of some blocks that nobody has sent before."""
    count = PROBE_BLOCKS * (facts.block_size or 16)
    words = (WORDS.split() * (count // 12 + 1))[:count]
    text = f"kvmesh doctor {secrets.token_hex(8)} {' '.join(words)}"
    return msgspec.json.encode(
        {
            "model": facts.models[0],
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            "temperature": 0.0,
        }
    )


async def _probe(
    pool: UpstreamPool,
    inspection: Inspection,
    chat: bytes,
    watches: list[SourceWatch],
    engine: Engine,
) -> ProbeSeen:
    """Send the chat twice, and wait in between for the events it makes."""
    name = inspection.tokenizer.name if inspection.tokenizer else ""
    sent = ask_for_ids(chat, engine.prompt_ids.fields if engine.prompt_ids else {})
    try:
        body = await _post(pool, inspection.engine_url, "/v1/chat/completions", sent)
        if watches:
            await until(lambda: any(one.stored_blocks for one in watches), EVENTS_TIMEOUT_S)
        again = await _post(pool, inspection.engine_url, "/v1/chat/completions", sent)
        usage = msgspec.json.decode(again, type=_Answer).usage
    except (TransportError, *UNREADABLE) as error:
        return ProbeSeen(error=str(error))
    details = usage.prompt_tokens_details
    theirs = engine_prompt_ids(body)
    differs = None
    if inspection.tokenizer is not None and theirs is not None:
        ours = inspection.tokenizer.encode_chat(ChatInput.from_body(chat))
        position = first_difference(ours, theirs)
        differs = -1 if position is None else position
    return ProbeSeen(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=details.cached_tokens if details else None,
        tokenizer=name,
        ids_differ_at=differs,
    )


async def _ask_route(pool: UpstreamPool, url: str, chat: bytes, mine: set[str]) -> _Route | None:
    """Ask until the router sees the chat cached at one of the workers `mine`, or time is up."""
    deadline = asyncio.get_running_loop().time() + INDEX_TIMEOUT_S
    while True:
        try:
            route = msgspec.json.decode(await _post(pool, url, "/v1/route", chat), type=_Route)
        except (TransportError, *UNREADABLE):
            return None
        found = any(one.overlap_blocks for one in route.candidates if one.worker in mine)
        if found or not mine or asyncio.get_running_loop().time() > deadline:
            return route
        await asyncio.sleep(POLL_S)


async def _post(pool: UpstreamPool, url: str, path: str, body: bytes) -> bytes:
    """Return the body of a 200 answer. Raises `TransportError` with the words of any other."""
    status, answer = await fetch(
        pool, url, path, timeout_s=PROMPT_TIMEOUT_S, headers=RETURN_IDS_HEADERS, json=body
    )
    if status != HTTP_OK:
        words = answer[:300].decode(errors="replace")
        raise TransportError(f"{path} answers {status}: {words}")
    return answer
