"""A client that chooses the block hashes of its prompts costs a router no more than another one.

It knows the secret of hashes here, as the holder of a worker's key does.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import httpx
import pytest

from kvmesh.core.blocks.hashing import namespace_root, sequence_hashes
from tests.integration.support.live_router import router_process
from tests.integration.support.replay_endpoint import ReplayEndpoint, serve
from tests.property.support.chosen_numbers import equal_products_and_bytes
from tests.property.support.chosen_prompts import prompt_of

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(180)]

BLOCKS = 128
PROMPTS = 180
WARM = 10
LAST = 40
MOST_RATIO = 2.0


SECRET = b"known to the attacker"
SEED = namespace_root(secret=SECRET)


def prompts(hashes: Sequence[int], draw: Random) -> Iterator[list[int]]:
    for at in range(0, len(hashes), BLOCKS):
        yield [*prompt_of(hashes[at : at + BLOCKS], draw, SEED), 1]


def test_block_hashes_are_as_chosen() -> None:
    draw = Random(1)
    hashes = [draw.getrandbits(64) for _ in range(20)]

    ids = prompt_of(hashes, draw)

    found = sequence_hashes(ids, 16)
    assert len(found) > 15
    assert found == [one for one in hashes if one in found]
    assert max(ids) < 1 << 31


async def cpu_s(client: httpx.AsyncClient) -> float:
    page = (await client.get("/metrics")).text
    (line,) = (one for one in page.splitlines() if one.startswith("process_cpu_seconds_total "))
    return float(line.split()[1])


async def last_ones_s(hashes: Sequence[int], draw: Random, secret: Path) -> float:
    """Return a router's processor time for the last prompts."""
    engine = ReplayEndpoint(workers=1, token_s=0.0)
    async with (
        serve(engine),
        router_process(
            *("--worker", f"{engine.url},zmq=off", "--block-size", "16"),
            *("--hash-secret-file", str(secret)),
        ) as client,
    ):
        begun_s = 0.0
        for number, ids in enumerate(prompts(hashes, draw)):
            if number == len(hashes) // BLOCKS - LAST:
                begun_s = await cpu_s(client)
            body = {"model": "mock", "prompt": ids, "max_tokens": 1}
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200
        return await cpu_s(client) - begun_s


async def test_prompts_of_chosen_hashes_cost_what_others_do(tmp_path: Path) -> None:
    draw, secret = Random(2), tmp_path / "secret"
    secret.write_bytes(SECRET)
    usual = [draw.getrandbits(64) for _ in range((WARM + LAST) * BLOCKS)]
    usual_s = await last_ones_s(usual, draw, secret)

    chosen_s = await last_ones_s(equal_products_and_bytes(PROMPTS * BLOCKS, draw), draw, secret)

    assert chosen_s <= MOST_RATIO * usual_s
