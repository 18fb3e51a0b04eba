"""gRPC health checks, by which a gateway leaves out a picker that cannot pick."""

from typing import Final

from kvmesh_lab.conformance.bench import Bench
from kvmesh_lab.conformance.case import HEALTH, PROTOCOL, Case, Rule, holds
from kvmesh_lab.conformance.link import CallFailedError, Link

CHECK: Final = "/grpc.health.v1.Health/Check"
STATES: Final = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
PROCESSOR: Final = "envoy.service.ext_proc.v3.ExternalProcessor"


async def check_health(bench: Bench, service: str) -> str:
    """Return the state of `service` in words. Raises `CallFailedError`, `Broken` for silence."""
    target = bench.target
    link = bench.link
    if target.health:
        link = Link(target.health, tls=target.tls, patience_s=target.patience_s)
    name = service.encode()
    try:
        answer = await link.ask_once(CHECK, b"\x0a" + bytes((len(name),)) + name if name else b"")
    finally:
        if link is not bench.link:
            await link.close()
    # HealthCheckResponse has one field, an enum; left out where it is 0.
    state = answer[1] if answer[:1] == b"\x08" and len(answer) > 1 else 0
    return STATES[state] if state < len(STATES) else f"state {state}"


async def _serves(bench: Bench, service: str) -> str:
    state = await check_health(bench, service)
    holds(state == "SERVING", f"Check of {service!r} says {state}, not SERVING")
    return ""


async def processor_serves(bench: Bench) -> str:
    """Check the service that gateways ask for."""
    return await _serves(bench, PROCESSOR)


async def is_alive(bench: Bench) -> str:
    """Check `liveness`."""
    return await _serves(bench, "liveness")


async def is_ready(bench: Bench) -> str:
    """Check `readiness`."""
    return await _serves(bench, "readiness")


async def server_serves(bench: Bench) -> str:
    """Check the empty name, which a probe of Kubernetes asks for."""
    return await _serves(bench, "")


async def unknown_is_not_found(bench: Bench) -> str:
    """Check a service that does not exist."""
    try:
        state = await check_health(bench, "conformance.NoSuchService")
    except CallFailedError as error:
        holds(error.code == "NOT_FOUND", f"{error}; expected NOT_FOUND")
        return ""
    holds(condition=False, text=f"a service that does not exist is {state}; expected NOT_FOUND")
    return ""


_SERVICES = Rule(
    "A picker exposes gRPC health checks: of its ext_proc service, `liveness` and `readiness`, "
    "SERVING where it can answer, or pick.",
    f"{PROTOCOL}#health-check-services",
)

CASES: Final = (
    Case("health-processor", "must", f"Check of {PROCESSOR}", _SERVICES, processor_serves),
    Case("health-liveness", "must", "Check of liveness", _SERVICES, is_alive),
    Case("health-readiness", "must", "Check of readiness", _SERVICES, is_ready),
    Case(
        "health-server",
        "should",
        "Check of the empty service name",
        Rule("The empty name stands for the server as a whole.", HEALTH),
        server_serves,
    ),
    Case(
        "health-unknown",
        "should",
        "Check of a service that does not exist",
        Rule("A service name that is not registered is answered NOT_FOUND.", HEALTH),
        unknown_is_not_found,
    ),
)
