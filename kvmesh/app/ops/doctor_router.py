"""Why a router may not see an engine's cache that is in good order by itself."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from kvmesh.bounds import counted
from kvmesh.core.engines.seen import EngineSeen, Finding, Level
from kvmesh.core.members.block_sizes import SizeSource


class WorkerFacts(msgspec.Struct, frozen=True):
    """One worker as a router knows it. `why_not` None: requests may go there."""

    worker: str
    url: str
    models: tuple[str, ...] = ()
    trust: str = ""
    why_not: str | None = None


class Signatures(msgspec.Struct, frozen=True):
    """Whether a router looks at signatures, None: nothing is signed; and what it refuses now."""

    verifies: bool | None = None
    refused: tuple[str, ...] = ()


class RouterFacts(msgspec.Struct, frozen=True):
    """A router's status. `block_size_from` says who decided on its block size,
    `block_sizes` are all that it looks for.
    `prompt_tokens` and `overlap_blocks` (by worker) are what it made of the prompt that the engine
    was sent before; None when it was not asked. `versions` counts members by role and version,
    `unread` are sentences on what is of a format that it does not read.
    """

    url: str
    error: str = ""
    mode: str = "kv"
    kv_events: bool = True
    why_not_ready: str = ""
    block_size: int = 0
    block_size_from: SizeSource = "given"
    block_sizes: tuple[int, ...] = ()
    workers: tuple[WorkerFacts, ...] = ()
    prompt_tokens: int | None = None
    overlap_blocks: dict[str, int] | None = None
    refused: dict[str, str] = {}
    signatures: Signatures = Signatures()
    versions: dict[str, dict[str, int]] = {}
    unread: tuple[str, ...] = ()


_SIZE_FROM: Final[Mapping[SizeSource, str]] = {
    "given": "as --kv-cache-block-size says",
    "workers": "as its workers say",
    "default": "by default, no worker has reported its own",
}

_TRUST = {
    "catching-up": ("its events are not all read yet", "wait; see the router's applied_sequence"),
    "degraded": (
        "events were lost: the sidecar does not know what the engine holds",
        "give the engine a replay_endpoint, or restart it, or clear its prefix cache",
    ),
    "approx": (
        "it has no events: overlaps are guessed from routing decisions",
        "start `kvmesh worker` beside it, and routers with --kv-events",
    ),
    "estimated": (
        "less than 9 of 10 of its last answers reused what was predicted to within a block",
        "its cache changes before requests start; too small for its load? docs/operate/tuning.md",
    ),
}


def check_router(router: RouterFacts, engine: EngineSeen) -> list[Finding]:
    """Return what keeps `router` from seeing `engine`'s cache, and what does not."""
    if router.error:
        remedy = "give the URL of a kvmesh router (not of the meta-router or an engine)"
        return [Finding(Level.FAIL, "router", f"{router.url}: {router.error}", remedy)]
    return [
        *_check_state(router),
        *_check_refused(router),
        *_check_signatures(router.signatures),
        *_check_versions(router),
        *_check_sizes(router, engine),
        *_check_workers(router, engine),
    ]


def _check_state(router: RouterFacts) -> Iterator[Finding]:
    if router.why_not_ready:
        remedy = "see the following lines, and the router's log"
        yield Finding(Level.WARN, "router", f"not ready: {router.why_not_ready}", remedy)
    else:
        yield Finding(Level.OK, "router", f"{router.url} is ready")
    if router.mode != "kv":
        text = f"mode {router.mode} does not look at caches"
        yield Finding(Level.FAIL, "router mode", text, "start it with --router-mode kv")
    if not router.kv_events:
        text = "--no-kv-events: overlaps are guessed from what was routed"
        yield Finding(Level.WARN, "router mode", text, "start it with --kv-events and --nats-url")


def _check_refused(router: RouterFacts) -> Iterator[Finding]:
    remedy = "if it is meant, start routers with --upstream-allow and all that they may reach"
    for worker, why in router.refused.items():
        yield Finding(Level.FAIL, f"worker {worker}", why, remedy)


def _check_signatures(signatures: Signatures) -> Iterator[Finding]:
    for line in signatures.refused:
        remedy = "see the row `signature refused` of docs/operate/runbook.md"
        yield Finding(Level.FAIL, "signatures", line, remedy)
    if signatures.verifies is False:
        text = "messages are signed, but this router verifies none: a stolen key can act as others"
        remedy = "when all processes are of this version, give --nats-trust trust.json to each"
        yield Finding(Level.WARN, "signatures", text, remedy)


def _check_versions(router: RouterFacts) -> Iterator[Finding]:
    for line in router.unread:
        remedy = "update this router, or go back with the others: see docs/operate/upgrade.md"
        yield Finding(Level.FAIL, "versions", line, remedy)
    known = {version for counts in router.versions.values() for version in counts}
    if len(known) > 1:
        counted = ", ".join(
            f"{count} {role}{'s' * (count > 1)} {version}"
            for role, counts in router.versions.items()
            for version, count in counts.items()
        )
        remedy = "finish the upgrade, or go back: see docs/operate/upgrade.md"
        yield Finding(Level.WARN, "versions", f"the bucket runs several: {counted}", remedy)
    elif known:
        yield Finding(Level.OK, "versions", f"all members run {known.pop()}")


def _check_sizes(router: RouterFacts, engine: EngineSeen) -> Iterator[Finding]:
    sizes = {size for source in engine.sources for size in source.block_sizes}
    size = min(sizes, default=engine.block_size)
    followed = router.block_sizes or (router.block_size,)
    own = f"{', '.join(map(str, followed))}, {_SIZE_FROM[router.block_size_from]}"
    if size and size not in followed:
        text = f"the router looks for blocks of {own}, the engine's have {size}: none can match"
        remedy = (
            "run `kvmesh worker` beside the engine, restarted after it: routers then look for"
            f" blocks of {size}, too"
        )
        yield Finding(Level.FAIL, "router block size", text, remedy)
    elif size:
        yield Finding(Level.OK, "router block size", f"{own}; the engine's is {size}")


def _check_workers(router: RouterFacts, engine: EngineSeen) -> Iterator[Finding]:
    mine = [one for one in router.workers if _same(one.url, engine.url)]
    if not mine:
        names = ", ".join(f"{one.worker} at {one.url}" for one in router.workers) or "none"
        yield Finding(
            Level.FAIL,
            "sidecar",
            f"no worker of the router has the URL {engine.url} (its workers: {names})",
            f"run `kvmesh worker --engine-url {engine.url}` with the router's --nats-url, "
            "--namespace and --bucket; the URL must be the same",
        )
    for worker in mine:
        yield from _check_worker(worker, router, engine)
    if mine:
        yield from _check_prompt(mine, router, engine)


def _check_worker(
    worker: WorkerFacts, router: RouterFacts, engine: EngineSeen
) -> Iterator[Finding]:
    topic = f"worker {worker.worker}"
    if worker.why_not is not None:
        text = f"gets no requests: {worker.why_not}"
        yield Finding(Level.FAIL, topic, text, "see the log of its sidecar")
    if any(line.startswith(f"worker {worker.worker} has ") for line in router.unread):
        text = "this router does not read the format of its records"
        yield Finding(Level.FAIL, topic, text, "update the router: see docs/operate/upgrade.md")
    elif worker.trust in _TRUST:
        text, remedy = _TRUST[worker.trust]
        wrong = router.kv_events and worker.trust != "estimated"
        level = Level.FAIL if wrong else Level.WARN
        yield Finding(level, topic, text, remedy)
    elif worker.why_not is None:
        yield Finding(Level.OK, topic, "is trusted and takes requests")
    if worker.models and set(worker.models) != set(engine.models):
        text = f"its sidecar says {list(worker.models)}, the engine serves {list(engine.models)}"
        remedy = "wait: a sidecar asks for names each 5 s; else --engine-url is another engine's"
        yield Finding(Level.FAIL, topic, text, remedy)


def _check_prompt(
    mine: list[WorkerFacts], router: RouterFacts, engine: EngineSeen
) -> Iterator[Finding]:
    """Compare what router and engine made of one and the same prompt."""
    probe = engine.probe
    if probe is None or probe.error or router.prompt_tokens is None:
        return
    if router.prompt_tokens != probe.prompt_tokens:
        yield Finding(
            Level.FAIL,
            "router tokenizer",
            f"the router counts {router.prompt_tokens} tokens where the engine counts "
            f"{probe.prompt_tokens}",
            "start routers with --tokenizer MODEL_DIR, the engine's own model directory",
        )
        return
    yield Finding(Level.OK, "router tokenizer", f"{probe.prompt_tokens} tokens as the engine")
    overlaps = router.overlap_blocks or {}
    best = max(overlaps.get(one.worker, 0) for one in mine)
    if best:
        text = f"the router sees {counted(best, 'block')} of the prompt the engine has just cached"
        yield Finding(Level.OK, "end to end", text)
    else:
        text = "the router sees nothing of the prompt the engine has just cached"
        remedy = "fix what failed above; else compare token ids: give --tokenizer MODEL_DIR"
        yield Finding(Level.FAIL, "end to end", text, remedy)


def _same(one: str, other: str) -> bool:
    return one.rstrip("/").lower() == other.rstrip("/").lower()
