"""`kvmesh picker`: one replica of a bucket, asked by gateways, in the mesh or alone."""

from kvmesh.app.process.running import run
from kvmesh.app.router.command import RouterServer
from kvmesh.app.router.picker_door import PickerPorts
from kvmesh.errors import ConfigError
from kvmesh.observe import configure_logging, get_logger
from kvmesh.settings.picker import PickerSettings


def picker_server(settings: PickerSettings) -> RouterServer:
    """Return a replica whose requests come from gateways. Raises `ConfigError`."""
    return RouterServer(settings.router, PickerPorts(settings))


def command(settings: PickerSettings) -> None:
    """Run an endpoint picker: a router of a bucket that gateways ask where a request goes."""
    log = settings.router.log
    configure_logging(log.log_level, log.log_format, role="picker")
    if settings.router.processes > 1:
        raise ConfigError(
            f"--processes {settings.router.processes}: a gateway asks each picker at a port of its "
            "own; run so many pickers, and name them all to the gateway"
        )
    server = picker_server(settings)
    get_logger().info("picker starts", router=server.router_id, bucket=settings.router.bucket)
    run(server.serve)
