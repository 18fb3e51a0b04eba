"""Two sites of compose for real, for `make chaos`: one that is full, the way between them cut."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.support.compose_project import Project
from tests.integration.support.live_router import free_port
from tests.integration.support.waiting import until

pytestmark = [
    pytest.mark.docker,
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.timeout(600),
]
FLOOD = 120


class Sites(Project):
    """Both sites of two-sites.yaml, at ports of their own."""

    def __init__(self) -> None:
        ports = free_port(), free_port()
        passwords = {"MESH_PASSWORD": "of-the-mesh", "LEAF_PASSWORD": "of-the-leaf"}
        named = dict(zip(("EU_PORT", "US_PORT"), map(str, ports), strict=True))
        super().__init__("two-sites.yaml", passwords | named)
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]

    def cut(self, *, healed: bool = False) -> None:
        """Take the site us off the network between sites, or put it there again."""
        for service in ("nats-us", "meta-router-us"):
            (one,) = self.compose("ps", "-q", service).split()
            alias = ["--alias", service] if healed else []
            verb = "connect" if healed else "disconnect"
            self.run("docker", "network", verb, *alias, f"{self.name}_wan", one)


@pytest.fixture
def sites() -> Iterator[Sites]:
    project = Sites()
    try:
        project.compose("up", "--detach")
        yield project
    finally:
        project.compose("down", "--volumes", "--timeout", "5")


async def test_a_site_that_is_full_sends_requests_to_the_other_and_one_that_is_cut_off_serves_on(
    sites: Sites,
) -> None:
    async with httpx.AsyncClient(timeout=60) as client:

        async def both_know() -> bool:
            found = [(await client.get(f"{url}/v1/status")).json() for url in sites.urls]
            return not any(one["sites"]["sites"][0]["why_not"] for one in found)

        async def ask(url: str, number: int) -> httpx.Response:
            body = {"model": "mock", "max_tokens": 1, "prompt": f"{number} word " * 3000}
            return await client.post(f"{url}/v1/completions", json=body)

        await until(both_know, within_s=120)
        flood = await asyncio.gather(*(ask(sites.urls[0], n) for n in range(FLOOD)))
        await asyncio.to_thread(sites.cut)
        apart = await asyncio.gather(*(ask(url, n) for n in range(20) for url in sites.urls))
        await asyncio.to_thread(sites.cut, healed=True)
        await until(both_know, within_s=120)
        again = await asyncio.gather(*(ask(url, n) for n in range(20) for url in sites.urls))

    assert Counter(one.status_code for one in (*flood, *apart, *again)) == {200: FLOOD + 80}
    # Both were idle: of so many at once about half are sooner served by the other one.
    served = Counter(one.headers["x-kvmesh-site"] for one in flood)
    assert min(served["eu"], served["us"]) > FLOOD // 10, served
