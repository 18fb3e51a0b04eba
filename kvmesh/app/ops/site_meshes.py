"""Several sites on one machine: `kvmesh up --sites 2`."""

import contextlib
import dataclasses
import secrets
from collections.abc import Mapping
from typing import Final

from kvmesh.app.ops.mesh_place import LOCALHOST, hold_data_dir, refuse_taken_ports
from kvmesh.app.ops.mesh_plan import LocalMesh, mesh_ports, plan_mesh
from kvmesh.app.ops.mesh_start import small_streams, start_children, start_nats, with_secret
from kvmesh.app.ops.site_server import site_conf
from kvmesh.app.process.fork_server import ForkServer
from kvmesh.app.process.supervisor import Child, ChildSpec
from kvmesh.core.sites.sites import MOST_SITES
from kvmesh.errors import ConfigError
from kvmesh.lab import require_lab
from kvmesh.settings.roles import UpSettings

APART: Final = 1000
LEAF_OFFSET: Final = 498


def site_name(number: int) -> str:
    """Return what the site of that number, from 0, is called; its mesh's namespace, too."""
    return f"site-{number + 1}"


def site_settings(settings: UpSettings) -> list[UpSettings]:
    """Return the settings of each site. Raises `ConfigError` for what does not go with sites."""
    if settings.sites > MOST_SITES:
        raise ConfigError(f"--sites {settings.sites}: there may be {MOST_SITES}")
    for flag, given in (
        ("--gateway", settings.gateway),
        ("--routers", settings.routers),
        ("--nats-url", settings.nats_url),
        ("--dashboard-port", settings.dashboard_port),
    ):
        if given:
            raise ConfigError(f"--sites {settings.sites} {flag}: sites have none; drop one of both")
    return [
        dataclasses.replace(
            settings,
            http_port=settings.http_port + APART * number,
            data_dir=settings.data_dir / site_name(number),
        )
        for number in range(settings.sites)
    ]


def of_site(mesh: LocalMesh, site: str, others: Mapping[str, str]) -> LocalMesh:
    """Return the mesh of a site: in a namespace of its own, its children called by its name."""
    front = mesh.front
    assert isinstance(front, ChildSpec), "sites have meta-routers"

    def told(spec: ChildSpec, *more: str) -> ChildSpec:
        return ChildSpec(f"{site}-{spec.name}", [*spec.args, *more], spec.ready_url)

    inside = ["--namespace", site]
    peers = [f"--peer-site={name}={url}" for name, url in others.items()]
    return LocalMesh(
        [told(one) for one in mesh.engines],
        [told(one, *inside) for one in mesh.sidecars],
        [told(one, *inside) for one in mesh.routers],
        told(front, *inside, "--site", site, *peers),
    )


async def start_sites(
    settings: UpSettings, stack: contextlib.AsyncExitStack, forks: ForkServer | None = None
) -> tuple[list[LocalMesh], str, list[Child]]:
    """Start every process of every site, as `start_mesh` does of one; return the plans, the URL of
    the first one's NATS and the processes. Each server joins those before it as a leaf.
    """
    require_lab("`kvmesh up` with its simulated engines")
    each = site_settings(settings)
    leaf_ports = [one.http_port + LEAF_OFFSET for one in each[:-1]]
    ports = [port for one in each for port in mesh_ports(one)]
    refuse_taken_ports([*ports, *leaf_ports], f"--http-port {settings.http_port}")
    stack.enter_context(hold_data_dir(settings.data_dir))
    secret = with_secret(settings).hash_secret_file
    leaf = secrets.token_urlsafe()
    doors = {
        site_name(number): f"http://{LOCALHOST}:{one.http_port}" for number, one in enumerate(each)
    }
    plans, urls = list[LocalMesh](), list[str]()
    for number, one in enumerate(each):
        name = site_name(number)
        others = {other: url for other, url in doors.items() if other != name}
        conf = site_conf(
            name,
            sorted(others),
            listen=leaf_ports[number] if one is not each[-1] else 0,
            hubs={
                site_name(before): f"nats-leaf://{name}:{leaf}@{LOCALHOST}:{port}"
                for before, port in enumerate(leaf_ports[:number])
            },
            leaf=leaf,
        )
        urls.append(await start_nats(one.data_dir / "nats", stack, conf))
        kept = dataclasses.replace(one, hash_secret_file=secret)
        plans.append(of_site(plan_mesh(kept, urls[-1], small_streams(kept)), name, others))
    specs = [spec for plan in plans for spec in plan.all()]
    return plans, urls[0], await start_children(specs, settings.data_dir, stack, forks)
