"""Replicas of one router in several processes behind one port: their names, and who runs them."""

from kvmesh.app.front.ports import dashboard_port
from kvmesh.app.process.place import own_place
from kvmesh.app.process.processes import ProcessPlan, run_processes
from kvmesh.app.process.running import Stop
from kvmesh.app.router.program_part import find_marks
from kvmesh.errors import ConfigError
from kvmesh.observe import get_logger
from kvmesh.settings.member_name import router_name
from kvmesh.settings.roles import RouterSettings


def replica_name(router_id: str) -> str:
    """Return the name of this replica: each of several processes is one. Raises `ConfigError`."""
    place = own_place()
    name = f"{router_id}-{place.number}" if place is not None and router_id else router_id
    return router_name(name)


async def run_replicas(settings: RouterSettings, stop: Stop) -> None:
    """Run `--processes` replicas behind one port until `stop`. Raises `ConfigError`."""
    http = settings.http
    find_marks(settings)  # what it refuses is said once, not by each process
    if http.advertise_url:
        raise ConfigError(
            f"--processes {settings.processes} --advertise-url {http.advertise_url}: each process "
            "is a replica with a port of its own, which it announces itself; leave the URL out"
        )
    plan = ProcessPlan(
        count=settings.processes,
        host=http.http_host,
        port=http.http_port,
        drain_s=http.drain_s,
        bucket=settings.bucket,
        dashboard_port=dashboard_port(http, settings.processes),
    )
    if not plan.dashboard_port:
        get_logger().warning(
            "no common dashboard: with --api-keys or --tls-cert run `kvmesh meta-router` with each "
            "process as a --replica"
        )
    await run_processes(plan, stop)
