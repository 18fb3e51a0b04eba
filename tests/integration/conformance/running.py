"""The suite as a test runs it: against a picker of this process, or one that listens."""

from kvmesh_lab.conformance.case import Result
from kvmesh_lab.conformance.options import ConformanceOptions
from kvmesh_lab.conformance.picker import try_picker
from tests.chaos.process import fixed_ports
from tests.integration.conformance.reference import Fault, ReferencePicker, serving


def endpoints(count: int = 3) -> tuple[str, ...]:
    """Return addresses at which the suite can listen."""
    return tuple(f"127.0.0.1:{port}" for port in fixed_ports(count))


async def results_of(options: ConformanceOptions) -> dict[str, Result]:
    """Return how each case ended."""
    found: list[Result] = []
    await try_picker(options, found.append)
    return {one.name: one for one in found}


async def try_reference(
    fault: Fault | None = None,
    *,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    patience_s: float = 5.0,
) -> dict[str, Result]:
    """Return how each case ended with the reference picker, or one with a fault."""
    pool = endpoints()
    async with serving(ReferencePicker(pool, fault)) as target:
        return await results_of(
            ConformanceOptions(
                target=target,
                endpoints=pool,
                only=only,
                skip=skip,
                patience_s=patience_s,
                wait_s=0.5,
            )
        )


def broken(results: dict[str, Result]) -> dict[str, str]:
    """Return the cases that did not pass, each with what was seen."""
    return {name: one.remark for name, one in results.items() if one.verdict in {"fail", "warn"}}
