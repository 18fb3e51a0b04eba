"""`kvmesh picker`, a process of its own, held against the protocol by the suite."""

import asyncio
from pathlib import Path

import httpx
import pytest

from kvmesh_lab.conformance.case import Result
from kvmesh_lab.conformance.options import ConformanceOptions
from kvmesh_lab.conformance.picker import ALL_CASES
from tests.chaos.process import MeshProcess, fixed_ports
from tests.integration.conformance.running import broken, endpoints, results_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


OPEN = ("kvmesh_booked_requests", "kvmesh_picks_open", "kvmesh_gateway_streams")
TLS = Path(__file__).parents[2] / "fixtures" / "tls"


async def try_ours(
    folder: Path, *flags: str, only: tuple[str, ...] = (), tls_ca: Path | None = None
) -> dict[str, Result]:
    """Return how each case ended with a picker of its own, started with `flags`."""
    pool = endpoints()
    http, grpc = fixed_ports(2)
    arguments = ["picker", "--no-kv-events", "--http-port", str(http), "--grpc-port", str(grpc)]
    for one in pool:
        arguments += ["--worker", f"http://{one}"]
    process = MeshProcess("picker", "", [*arguments, *flags], folder / "picker.log", "json")
    process.start()
    try:
        results = await results_of(
            ConformanceOptions(
                target=f"127.0.0.1:{grpc}",
                endpoints=pool,
                only=only,
                tls_ca=tls_ca,
                tls_name="localhost",
            )
        )
        await nothing_is_left(f"http://127.0.0.1:{http}/metrics")
        return results
    finally:
        process.kill()


async def nothing_is_left(metrics: str) -> None:
    """Wait until no request is booked nor followed any more, however cases have left it."""
    async with httpx.AsyncClient() as client, asyncio.timeout(10):
        while True:
            lines = (await client.get(metrics)).text.splitlines()
            figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
            left = {name: figures[name] for name in OPEN if float(figures[name])}
            if not left:
                return
            await asyncio.sleep(0.1)


def skipped(results: dict[str, Result]) -> set[str]:
    return {name for name, one in results.items() if one.verdict == "skip"}


async def test_our_picker_passes_over_grpc_and_through_envoy(tmp_path: Path) -> None:
    results = await try_ours(tmp_path)

    assert broken(results) == {}
    assert skipped(results) == {"crowd-retry-after"}
    assert set(results) == {case.name for case in ALL_CASES}


async def test_our_picker_passes_over_tls(tmp_path: Path) -> None:
    flags = ["--grpc-tls-cert", str(TLS / "cert.pem"), "--grpc-tls-key", str(TLS / "key.pem")]

    results = await try_ours(
        tmp_path, *flags, only=("health", "body-1m", "envoy-obeyed"), tls_ca=TLS / "cert.pem"
    )

    assert broken(results) == {}
    assert skipped(results) == set()


async def test_our_picker_refuses_a_crowd_as_the_protocol_says(tmp_path: Path) -> None:
    flags = ["--max-backlog-ms", "1", "--max-wait-s", "1"]

    results = await try_ours(tmp_path, *flags, only=("crowd-open", "crowd-retry"))

    assert broken(results) == {}
    assert skipped(results) == set()
    assert "refused: " in results["crowd-open"].remark
