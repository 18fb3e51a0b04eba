"""Why an engine's cache may stay unseen: each thing that would make every overlap 0, in words."""

from collections.abc import Iterator, Sequence
from typing import Final

from kvmesh.bounds import counted
from kvmesh.core.engines.advice import (
    how_to_cache,
    how_to_enlarge_blocks,
    how_to_report_cached,
    who_returns_ids,
    whose_events,
)
from kvmesh.core.engines.registry import engine_of
from kvmesh.core.engines.seen import EngineSeen, Finding, GroupSeen, Level, ProbeSeen, SourceSeen

SMALL_BLOCK_TOKENS = 8
"""Blocks smaller than this cost more to follow than a larger size loses."""

FLAGS = '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq",...}\''

_RULED: Final = frozenset({"sliding_window", "sliding_window_mla", "mamba"})
"""Kinds of cache groups, besides full attention, of which it is known where a hit may end."""


def check_engine(engine: EngineSeen) -> list[Finding]:
    """Return what is right and wrong with the engine alone, causes before their consequences."""
    if not engine.answers:
        remedy = "start the engine, or give the base URL of its OpenAI server, without /v1"
        return [Finding(Level.FAIL, "engine", f"{engine.url} does not answer /v1/models", remedy)]
    if engine.kind == "kvmesh":
        remedy = (
            "give the engine's own URL, the --engine-url of its sidecar; a router's URL is for "
            "--router-url"
        )
        return [Finding(Level.FAIL, "engine", f"{engine.url} is a kvmesh router", remedy)]
    return [
        *_check_version(engine),
        *_check_models(engine),
        *_check_caching(engine),
        *_check_blocks(engine),
        *check_ports(engine.sources),
        *_check_sources(engine),
        *_check_probe(engine.probe),
    ]


def _check_version(engine: EngineSeen) -> Iterator[Finding]:
    name = f"{engine.kind or 'unknown engine'} {engine.version}".strip()
    version = parse_version(engine.version)
    if not engine.kind:
        yield Finding(
            Level.WARN,
            "engine",
            f"of a kind kvmesh does not know: KV events only if they are {whose_events()} form",
            "without them serve it approximately: kvmesh router --no-kv-events --worker URL",
        )
    elif version and version < (oldest := engine_of(engine.kind).words.oldest_with_events):
        remedy = f"upgrade to {_dotted(oldest)} or later"
        yield Finding(Level.FAIL, "engine", f"{name} publishes no KV events", remedy)
    elif version[: len(newest := engine_of(engine.kind).words.newest_read)] > newest:
        text = f"{name} is newer than any this kvmesh has read ({_dotted(newest)})"
        remedy = (
            "upgrade kvmesh, or watch kvmesh_worker_predictions: what it does not know of the "
            "events is left out and counted"
        )
        yield Finding(Level.WARN, "engine", text, remedy)
    else:
        yield Finding(Level.OK, "engine", f"{name} at {engine.url}")


def _check_models(engine: EngineSeen) -> Iterator[Finding]:
    if engine.models:
        yield Finding(Level.OK, "models", ", ".join(engine.models))
    else:
        remedy = "clients must name a served model; see /v1/models"
        yield Finding(Level.FAIL, "models", "the engine serves no model", remedy)


def _check_caching(engine: EngineSeen) -> Iterator[Finding]:
    if engine.prefix_caching is False:
        text = "is off: nothing is ever reused"
        yield Finding(Level.FAIL, "prefix caching", text, how_to_cache())
    elif engine.prefix_caching:
        yield Finding(
            Level.OK, "prefix caching", "is on (its hash and seed do not matter: tokens are hashed)"
        )


def _check_blocks(engine: EngineSeen) -> Iterator[Finding]:
    size = engine.block_size
    seen = sorted({size for source in engine.sources for size in source.block_sizes})
    if not size and not seen:
        remedy = "give kvmesh worker --kv-cache-block-size if its events are silent too"
        yield Finding(Level.WARN, "block size", "the engine does not report it", remedy)
        return
    if seen and size and seen != [size]:
        yield Finding(
            Level.WARN,
            "block size",
            f"announced as {size}, but events have blocks of {seen}: the events count",
            f"routers take it from the events; one that is given a size needs {seen[0]}",
        )
    size = min(seen or [size])
    if size == 1:
        text = "one token a block floods the mesh"
        yield Finding(Level.FAIL, "block size", text, how_to_enlarge_blocks())
    elif size < SMALL_BLOCK_TOKENS:
        remedy = "16 to 64 tokens a block are usual"
        yield Finding(Level.WARN, "block size", f"{size} tokens is very small", remedy)
    else:
        yield Finding(Level.OK, "block size", f"{size} tokens")


def check_ports(sources: Sequence[SourceSeen]) -> Iterator[Finding]:
    """Yield the ports used twice.

    A rank adds its number to both ports, so replay right behind events meets the next rank's.
    """
    users: dict[str, list[str]] = {}
    for source in sources:
        users.setdefault(_port(source.endpoint), []).append(f"rank {source.rank} events")
        if source.replay:
            users.setdefault(_port(source.replay), []).append(f"rank {source.rank} replay")
    for port, names in users.items():
        if len(names) > 1 and port.isdigit():
            remedy = "put the replay port further from the events port than there are ranks"
            text = f"port {port} is used by {' and '.join(names)}"
            yield Finding(Level.FAIL, "event ports", text, remedy)


def _check_sources(engine: EngineSeen) -> Iterator[Finding]:
    if not engine.sources:
        yield _no_source(engine)
    for source in engine.sources:
        topic = f"events of rank {source.rank}"
        yield _check_events(source, topic, engine)
        if not source.replay:
            yield Finding(
                Level.WARN,
                topic,
                "no replay socket: after a restart of the sidecar the cache is not known",
                'add "replay_endpoint" to --kv-events-config (or give --kv-replay-endpoint)',
            )
        elif not source.replay_connected:
            text = f"nothing answers at the replay socket {source.replay}"
            yield Finding(Level.FAIL, topic, text, "is the port open to this machine?")
        yield from _check_groups(source.groups, topic)
        if source.odd:
            text = f"{counted(source.odd, 'event')} left out, since unreadable: {source.why}"
            remedy = "overlaps may be too low; upgrade kvmesh; report the version to its authors"
            yield Finding(Level.WARN, topic, text, remedy)
        if source.unknown:
            text = f"{source.unknown} fields or events that this kvmesh does not know were skipped"
            yield Finding(
                Level.WARN, topic, text, "upgrade kvmesh; report the version to its authors"
            )


def _check_groups(groups: Sequence[GroupSeen], topic: str) -> Iterator[Finding]:
    """Yield what a model with several cache groups means for what can be reused."""
    if groups and not any(group.full for group in groups):
        kinds = ", ".join(sorted({group.kind for group in groups}))
        text = f"only blocks of {kinds} are told, reuse needs full attention"
        remedy = "overlaps will be too high or too low: serve it with --router-mode least-loaded"
        yield Finding(Level.WARN, topic, text, remedy)
        return
    if len(groups) > 1:
        listed = "; ".join(group.words() for group in groups)
        text = f"a hybrid model, {len(groups)} cache groups: {listed}. All decide where a hit ends"
        yield Finding(Level.OK, topic, text)
    for group in groups:
        if not group.full and group.kind not in _RULED:
            text = (
                f"cache group {group.number} is of kind {group.kind}, whose rule this kvmesh does "
                "not know: a hit counts only while all blocks of that group are held"
            )
            remedy = "overlaps may be too low, never too high; upgrade kvmesh"
            yield Finding(Level.WARN, topic, text, remedy)


def _no_source(engine: EngineSeen) -> Finding:
    if engine.lists_events:
        text, remedy = "are off", f"start the engine with {FLAGS}"
        return Finding(Level.FAIL, "KV events", text, remedy)
    oldest = engine_of(engine.kind).words.oldest_that_lists
    why = f" (from {_dotted(oldest)} on it does)" if oldest else ""
    return Finding(
        Level.FAIL,
        "KV events",
        f"the engine does not report whether and where it publishes{why}",
        f"start it with {FLAGS} and give --kv-events-endpoint tcp://HOST:PORT",
    )


def _check_events(source: SourceSeen, topic: str, engine: EngineSeen) -> Finding:
    if not source.connected:
        remedy = (
            "is the port open to this machine? An engine given tcp://HOST:PORT, not tcp://*:PORT, "
            "connects: then give --kv-events-bind here and to its sidecar"
        )
        return Finding(Level.FAIL, topic, f"nothing answers at {source.endpoint}", remedy)
    if source.undecodable:
        text = f"{source.undecodable} of {source.batches} batches are no KV events"
        text += f": {source.why}" if source.why else ""
        remedy = f"is this the port of {whose_events()} KV events, and not of something else?"
        return Finding(Level.FAIL, topic, text, remedy)
    if source.stored_blocks:
        batches = counted(source.batches, "batch", "batches")
        text = f"{counted(source.stored_blocks, 'block')} stored in {batches}"
        return Finding(Level.OK, topic, f"{text} at {source.endpoint}")
    if engine.probe is None or engine.probe.error:
        remedy = "send a prompt of some blocks, or run without --no-probe"
        return Finding(Level.WARN, topic, "connected, nothing heard yet", remedy)
    if any(other.stored_blocks for other in engine.sources):
        text = f"connected to {source.endpoint}; the prompt was computed by another rank"
        return Finding(Level.OK, topic, text)
    text = f"nothing heard at {source.endpoint} though a prompt was computed"
    remedy = f"is the topic right, the port that of this engine, is it started with {FLAGS}?"
    return Finding(Level.FAIL, topic, text, remedy)


def _check_probe(probe: ProbeSeen | None) -> Iterator[Finding]:
    if probe is None:
        return
    if probe.error:
        remedy = "see the engine's log, or run with --no-probe"
        yield Finding(Level.WARN, "probe", f"no answer to a prompt: {probe.error}", remedy)
        return
    if probe.cached_tokens is None:
        text = "the engine does not report cached tokens, so predictions cannot be checked"
        yield Finding(Level.WARN, "reuse", text, how_to_report_cached())
    elif not probe.cached_tokens:
        remedy = "is prefix caching on, is the cache larger than a prompt, is there one engine?"
        text = f"a prompt of {probe.prompt_tokens} tokens sent twice was computed twice"
        yield Finding(Level.FAIL, "reuse", text, remedy)
    else:
        text = f"{probe.cached_tokens} of {probe.prompt_tokens} tokens of a repeated prompt"
        yield Finding(Level.OK, "reuse", text)
    if probe.tokenizer:
        yield _check_tokenizer(probe)


def _check_tokenizer(probe: ProbeSeen) -> Finding:
    remedy = "give kvmesh the engine's own model directory and chat template"
    if probe.ids_differ_at is None:
        text = "the engine does not return token ids: not compared"
        return Finding(Level.WARN, "tokenizer", text, f"needs {who_returns_ids()}")
    if probe.ids_differ_at >= 0:
        text = f"{probe.tokenizer} differs from the engine's ids at position {probe.ids_differ_at}"
        return Finding(Level.FAIL, "tokenizer", text, remedy)
    return Finding(Level.OK, "tokenizer", f"{probe.tokenizer} makes the engine's token ids")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def parse_version(text: str) -> tuple[int, ...]:
    """Return the first three numbers of a version; empty when it does not begin with one."""
    numbers: list[int] = []
    for part in text.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _port(endpoint: str) -> str:
    return endpoint.rpartition(":")[2]
