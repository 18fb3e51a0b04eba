"""Settings of HTTP: the front door, and the way to the next hop."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from kvmesh.settings.types import Count, Fixed, Limits, NonNegative, Often, Port, Positive
from kvmesh.transport.http.server.limits import HttpLimits


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """The front door. Loopback by default: name 0.0.0.0 to serve others."""

    http_host: Annotated[str, Often] = "127.0.0.1"
    """Address to listen on; 0.0.0.0 to serve other machines."""
    http_port: Annotated[Port, Often] = 8000
    """Port to listen on; 0 takes a free one."""
    admin_port: str = ""
    """[HOST:]PORT of its own for /metrics, /v1/status and /admin/…, which the front door then does
    not serve, and for the dashboard, /health and /ready besides; it asks for no API key. Without
    HOST only this machine reaches it. Default: the front door serves them."""
    dashboard_port: Port | None = None
    """Port of its own for the dashboard and its login, at --http-host, with the same keys and
    certificate; the front door then serves neither, and no page shares the origin of what engines
    answer. Default: the front door serves them."""
    advertise_url: str = ""
    """URL under which others reach this process; default from --http-host and --http-port, with
    this machine's address on its default route in place of 0.0.0.0 and ::."""
    max_body_bytes: Positive = 64 * 1024**2
    """Largest request body taken, bytes; more is answered 413."""
    drain_s: NonNegative = 30.0
    """On SIGTERM, seconds open streams may go on before they are cut."""
    tls_cert: Annotated[Path | None, Often] = None
    """PEM certificate chain; turns HTTPS on. Read again when it changes."""
    tls_key: Annotated[Path | None, Often] = None
    """PEM private key of --tls-cert."""
    tls_client_ca: Path | None = None
    """PEM bundle of CAs; only clients with a certificate they signed may connect (mTLS)."""
    api_keys: Annotated[Path | None, Often] = None
    """File of hashed keys (`kvmesh api-key`): every path but /health and /ready asks for one. A
    browser shows it at /login. Read again when it changes."""
    cors_origin: tuple[str, ...] = ()
    """Origin whose pages may call this port from a browser, e.g. https://app.example; repeat, * is
    every one. They show a key of their own. Never for /admin/…, /login. Default: none."""
    session_secret_file: Path | None = None
    """File with a secret (`openssl rand -hex 32`) that seals browsers' logins: processes behind one
    address that share it know each other's. Default: each its own, until it ends."""
    limits: Annotated[HttpLimits, Fixed] = field(default_factory=HttpLimits)
    """Other bounds of what clients send. Total body bytes are lowered to what the memory allows."""


@dataclass(frozen=True, kw_only=True)
class SidecarHttpSettings:
    """A sidecar's port for probes and Prometheus. It asks for no key and tells no prompt."""

    http_host: Annotated[str, Often] = "127.0.0.1"
    """Address of --http-port."""
    http_port: Annotated[Port, Often] = 0
    """Port of /health, /ready and /metrics; 0 opens none. In containers: 9400."""


KEEP_STREAM_BYTES: Final = 256 << 20
"""About 20 KB a short chat, 1 MB an agent's turn of 100k tokens."""


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings:
    """Deadlines and retries towards the next hop."""

    max_retries: Annotated[int, Parameter(validator=Number(gte=0, lte=10)), Limits] = 2
    """Further workers tried when one fails before its first byte."""
    keep_stream_bytes: Annotated[Count, Limits] = KEEP_STREAM_BYTES
    """Bytes kept of all streams under way, requests and token ids, so that one whose next hop is
    lost or leaves goes on elsewhere, unnoticed; streams beyond it do not. x-kvmesh-resumable says
    what a client may count on. 0 is off; a picker keeps none. See docs/operate/failures.md."""
    upstream_allow: tuple[str, ...] = ()
    """Where requests may be sent when heartbeats or --discover name the URL: a CIDR, an address, a
    host name, *.domain, each with :PORT or :LOW-HIGH; or any; repeat. Default: everywhere but
    link-local addresses, the metadata services of clouds and, where NATS is on another machine,
    loopback. Hosts of --worker and --replica are always allowed."""
    upstream_key_file: Path | None = None
    """File with the key to show the next hop as a bearer: a router to its engines, a meta-router
    to its routers. With --api-keys a router never passes clients' keys on."""
    upstream_ca: Path | None = None
    """CA bundle that signs https next hops; default: the system's."""
    upstream_cert: Path | None = None
    """PEM file with the certificate chain to show https next hops (mTLS), and its private key."""
