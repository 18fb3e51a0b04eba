"""One run against an endpoint picker: the model servers, both benches, all cases."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from kvmesh.app.picker.envoy_server import find_envoy
from kvmesh.errors import ConfigError, TransportError
from kvmesh_lab.conformance import (
    case_answers,
    case_calls,
    case_crowds,
    case_health,
    case_picks,
    case_requests,
    case_trust,
    gateway_deaths,
    gateway_traffic,
)
from kvmesh_lab.conformance.bench import Bench, Target
from kvmesh_lab.conformance.case import Broken, Case, Result, UnreachableError
from kvmesh_lab.conformance.exchange import read_endpoint
from kvmesh_lab.conformance.gateway_bench import GatewayBench
from kvmesh_lab.conformance.gateway_endpoints import ModelServer
from kvmesh_lab.conformance.link import Tls
from kvmesh_lab.conformance.options import ConformanceOptions
from kvmesh_lab.conformance.suite import run_case, skip_case

BARE_CASES: Final[tuple[Case[Bench], ...]] = (
    *case_health.CASES,
    *case_calls.CASES,
    *case_picks.CASES,
    *case_requests.CASES,
    *case_trust.CASES,
    *case_answers.CASES,
    *case_crowds.CASES,
)
ENVOY_CASES: Final[tuple[Case[GatewayBench], ...]] = (*gateway_traffic.CASES, *gateway_deaths.CASES)
ALL_CASES: Final[tuple[Case[Any], ...]] = (*BARE_CASES, *ENVOY_CASES)
RETRY_S: Final = 0.1


async def try_picker(options: ConformanceOptions, on_result: Callable[[Result], object]) -> None:
    """Run the cases; `on_result` is called as each ends.

    Raises `ConfigError` for options that make no sense, and where the suite cannot listen.
    """
    target = target_of(options)
    chosen = set(chosen_names(options))
    async with AsyncExitStack() as stack:
        addresses, failed = target.endpoints if options.serve else (), set[str]()
        servers = [ModelServer(one, options.model, failed) for one in addresses]
        for server in servers:
            await server.start()
            stack.push_async_callback(server.stop)
        bench = Bench(target)
        stack.push_async_callback(bench.close)
        await until_picked(bench, options.wait_s)
        await bench.learn()
        for case in BARE_CASES:
            if case.name in chosen:
                on_result(await run_case(bench, case))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
        gateways = GatewayBench(target, servers, folder)
        stack.push_async_callback(gateways.close)
        missing = why_no_envoy(options, servers)
        for one in ENVOY_CASES:
            if one.name in chosen:
                on_result(skip_case(one, missing) if missing else await run_case(gateways, one))


def target_of(options: ConformanceOptions) -> Target:
    """Return the picker to be tried. Raises `ConfigError` for addresses that are none."""
    check_address("--target", options.target)
    if options.health:
        check_address("--health", options.health)
    for endpoint in options.endpoints:
        try:
            read_endpoint(endpoint)
        except Broken as error:
            raise ConfigError(f"--endpoints: {error}") from error
    if options.tls_ca is not None and not options.tls_ca.is_file():
        raise ConfigError(f"--tls-ca {options.tls_ca}: no such file")
    return Target(
        address=options.target,
        health=options.health,
        endpoints=options.endpoints,
        model=options.model,
        path=options.path,
        patience_s=options.patience_s,
        tls=None if options.tls_ca is None else Tls(options.tls_ca, options.tls_name),
    )


def check_address(flag: str, address: str) -> None:
    """Raise `ConfigError` unless `address` is host:port."""
    try:
        parts = urlsplit(f"//{address}")
        good = bool(parts.hostname and parts.port) and address == parts.netloc
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{flag} {address!r}: write host:port")


def chosen_names(options: ConformanceOptions) -> list[str]:
    """Return the cases to run. Raises `ConfigError` for a name that no case begins with."""
    names = [case.name for case in ALL_CASES]
    for flag, words in (("--only", options.only), ("--skip", options.skip)):
        for word in words:
            if not any(name.startswith(word) for name in names):
                raise ConfigError(f"{flag} {word}: no case begins so; --list names them")
    wanted = options.only or ("",)
    return [
        name
        for name in names
        if name.startswith(tuple(wanted)) and not name.startswith(options.skip)
    ]


async def until_picked(bench: Bench, wait_s: float) -> None:
    """Return once a chat is picked, or at the latest after `wait_s`: the cases then say why not.

    Raises `TransportError` if no gRPC server answers by then.
    """
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        link = bench.target.connect()  # a new one: one that failed waits before it tries again
        try:
            await bench.pick(bench.asks(), link)
        except UnreachableError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise TransportError(
                    f"--target {bench.target.address}: no gRPC server answers ({error}); is that "
                    "the picker's gRPC port, and with --tls-ca if it has TLS?"
                ) from error
        except Broken:
            if asyncio.get_running_loop().time() > deadline:
                return
        else:
            return
        finally:
            await link.close()
        await asyncio.sleep(RETRY_S)


def why_no_envoy(options: ConformanceOptions, servers: Sequence[ModelServer]) -> str:
    """Return why nothing can be tried through Envoy, with the remedy, or ""."""
    if not options.envoy:
        return "left out by --no-envoy"
    if not servers:
        return "needs model servers of the suite: name addresses that the picker knows, --endpoints"
    try:
        find_envoy()
    except ConfigError as error:
        return str(error)
    return ""
