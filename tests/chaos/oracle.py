"""What must be true of a mesh at rest, and in words what is not."""

from typing import Any

import httpx

from kvmesh.core.blocks.hashing import unpack_hashes
from kvmesh.errors import TransportError
from tests.chaos.mesh import ChaosMesh
from tests.chaos.process import MeshProcess
from tests.chaos.witness import Witness

U64 = (1 << 64) - 1


async def differences(mesh: ChaosMesh, witness: Witness, client: httpx.AsyncClient) -> list[str]:
    """Return what is wrong with the mesh now; at rest, the empty list."""
    try:
        truth = {worker: await held_blocks(*mesh.ranks[worker], client) for worker in mesh.ranks}
        statuses = {one.name: await status_of(one.url, client) for one in mesh.routers}
        await witness.judge_claims()
    except (httpx.HTTPError, ValueError, TransportError) as error:
        return [f"somebody does not answer: {error!r}"]
    found = witness.differences() + disagreements(statuses, truth)
    for name, status in statuses.items():
        if status["mesh"]["applied_sequence"] != witness.position:
            applied = status["mesh"]["applied_sequence"]
            found.append(f"{name} applied {applied}, the journal ends at {witness.position}")
    return found


def disagreements(
    statuses: dict[str, dict[str, Any]], truth: dict[str, tuple[int, ...]]
) -> list[str]:
    """Return in what the replicas of these names and statuses are wrong about workers, whose caches
    hold such blocks, and disagree.
    """
    found = [f"{name}: {what}" for name, one in statuses.items() for what in _router(one, truth)]
    claims = {name: _claim(status) for name, status in statuses.items()}
    if len(set(claims.values())) > 1:
        found.append(f"replicas disagree on (stream, sequence, digest): {claims}")
    return found


def _router(status: dict[str, Any], truth: dict[str, tuple[int, ...]]) -> list[str]:
    mesh, workers = status["mesh"], {one["worker"]: one for one in status["workers"]}
    found = [] if status["ready"] else ["it is not ready"]
    if mesh["indexer"]["mismatches"]:
        found.append(f"it saw {mesh['indexer']['mismatches']} digests of replicas differ")
    for worker in truth.keys() ^ workers.keys():
        known = "not known" if worker in truth else "known, though there is none"
        found.append(f"{worker} is {known}")
    for worker in truth.keys() & workers.keys():
        found += [f"{worker} {what}" for what in _worker(workers[worker])]
        found += [f"{worker} {what}" for what in _index(mesh, worker, truth[worker])]
    for worker in mesh["blocks"].keys() - truth.keys():
        found.append(f"the index has {mesh['blocks'][worker]} blocks of {worker}, who is not there")
    return found


def _worker(seen: dict[str, Any]) -> list[str]:
    found = [] if seen["usable"] else [f"is not usable: {seen['why_not']}"]
    if seen["trust"] not in {"exact", "estimated"}:
        found.append(f"is trusted as {seen['trust']}")
    if seen["active_requests"]:
        found.append(f"has {seen['active_requests']} requests booked, though nobody asks")
    return found


def _index(mesh: dict[str, Any], worker: str, held: tuple[int, ...]) -> list[str]:
    """Compare count and sum of the hashes, which no two sets of blocks share by chance."""
    blocks = mesh["blocks"].get(worker, 0)
    if blocks != len(held):
        return [f"has {len(held)} blocks in its cache, {blocks} in the index"]
    digest = f"{sum(held) & U64:016x}"
    indexed = mesh["worker_digests"].get(worker, f"{0:016x}")
    if indexed != digest:
        return [f"has other {blocks} blocks in its cache than in the index: {digest}, {indexed}"]
    return []


def _claim(status: dict[str, Any]) -> tuple[str, int, str]:
    mesh = status["mesh"]
    return mesh["created"], mesh["applied_sequence"], mesh["digest"]


async def held_blocks(engine: MeshProcess, rank: int, client: httpx.AsyncClient) -> tuple[int, ...]:
    """Return the hashes of what a rank of a simulated engine has in its cache."""
    answer = await client.get(f"{engine.url}/kvmesh/dump?rank={rank}")
    return unpack_hashes(answer.raise_for_status().content)


async def status_of(url: str, client: httpx.AsyncClient) -> dict[str, Any]:
    """Return what a router says of itself."""
    status: dict[str, Any] = (await client.get(f"{url}/v1/status")).raise_for_status().json()
    return status
