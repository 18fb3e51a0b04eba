"""Settings of `kvmesh picker`: those of a router, and of the port that gateways ask."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from kvmesh.settings.roles import RouterSettings
from kvmesh.settings.types import Flat, FrontDoor, NonNegative, Often, Port, Routing

Alternatives = Annotated[int, Parameter(validator=Number(gte=0, lte=8))]


@dataclass(frozen=True, kw_only=True)
class GrpcSettings:
    """The port at which gateways ask."""

    grpc_host: Annotated[str, Often] = "127.0.0.1"
    """Address on which gateways ask (ext_proc); 0.0.0.0 for those of other machines. It serves gRPC
    health, too."""
    grpc_port: Annotated[Port, Often] = 9002
    """Port of it; 0 takes a free one."""
    grpc_tls_cert: Path | None = None
    """PEM certificate chain of that port; turns TLS on. Read again when it changes."""
    grpc_tls_key: Path | None = None
    """PEM private key of --grpc-tls-cert."""
    grpc_tls_client_ca: Path | None = None
    """PEM bundle of CAs; only gateways with a certificate they signed may ask (mTLS)."""
    notice_s: NonNegative = 3.0
    """On SIGTERM, seconds during which gRPC health says NOT_SERVING and requests are still taken:
    time for gateways to turn to another picker. Then --drain-s for those that are open."""


@dataclass(frozen=True, kw_only=True)
class PickerSettings:
    """`kvmesh picker`. Its HTTP port has probes, metrics and views, and takes no requests."""

    picker_alternatives: Annotated[Alternatives, Routing] = 0
    """Endpoints that a gateway gets besides the chosen one, the best first: where it sends a
    request that fails there. Only for gateways that read a list, as Envoy's override_host policy
    does: with ORIGINAL_DST Envoy answers 503 to every pick of more than one."""
    picker_prefill: Annotated[Literal["picker", "llm-d", "dynamo"], Routing] = "picker"
    """Who asks a prefill worker, where there are any: picker: this process, before it names the
    decode worker to the gateway; llm-d, dynamo: the sidecar of the decode worker, by the request's
    headers. See docs/workloads/prefill-decode.md."""
    grpc: Annotated[GrpcSettings, Flat, FrontDoor] = field(default_factory=GrpcSettings)
    router: Annotated[RouterSettings, Flat] = field(default_factory=RouterSettings)
