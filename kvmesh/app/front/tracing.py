"""Whether requests are traced: by `app.front.otel` when an endpoint is named, else not at all."""

import os
from typing import Final, Protocol

from kvmesh.errors import ConfigError
from kvmesh.transport.http.forward.plan import ForwardPlan
from kvmesh.transport.http.server.incoming import Incoming

ENVIRONMENT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""OpenTelemetry's own variable; its sampler, header and attribute variables count, too."""


class Tracer(Protocol):
    """Watches requests on their way."""

    def watch(self, exchange: Incoming, plan: ForwardPlan) -> ForwardPlan:
        """Return a plan that does what `plan` does, and tells of it."""
        ...

    def close(self) -> None:
        """Send what is not yet sent; may take seconds."""
        ...


def tracer_for(endpoint: str, role: str) -> Tracer | None:
    """Return what traces the requests of a process called `role` to an OTLP/HTTP `endpoint`.

    "" asks OpenTelemetry's own variable; None where that names nothing either: then clients'
    `traceparent` headers go to engines as they came. Raises `ConfigError` where the library is
    missing.
    """
    endpoint = endpoint or os.environ.get(ENVIRONMENT, "")
    if not endpoint:
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"--otlp-endpoint {endpoint!r}: write http://host:4318")
    try:
        # The library is an extra, and takes long to load.
        from kvmesh.app.front.otel import OpenTelemetryTracer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--otlp-endpoint {endpoint}: {error.name} is missing; pip install 'kvmesh[otel]'"
        ) from error
    return OpenTelemetryTracer(endpoint, role)
