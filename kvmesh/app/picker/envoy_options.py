"""What a gateway in front of endpoint pickers may be told: addresses, modes, failure mode."""

from pathlib import Path
from typing import Literal

import msgspec

BodyMode = Literal["NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"]
"""How Envoy shows a body to the picker; `ProcessingMode.BodySendMode` of ext_proc v3."""

Destination = Literal["override_host", "original_dst"]
"""How Envoy obeys a pick. `override_host`: endpoints it knows; the next alternative on a retry;
round robin without a pick. `original_dst`: any address, but only one: 503 for a list, or for none.
"""

PickSource = Literal["metadata", "header"]
"""Where Envoy reads the pick. A client can write headers, never metadata."""


class Address(msgspec.Struct, frozen=True):
    """Where something listens. Port 0 of a listener: a free one, told by `EnvoyServer`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


LOOPBACK = Address("127.0.0.1", 0)


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One Envoy: who listens, which pickers it asks, which endpoints it knows, how it fails.

    `subset`: the only endpoints the pickers may choose, as `envoy.lb.subset_hint` says it.
    `fail_open`: without a picker, Envoy chooses by itself; else it refuses. Of what it sends in
    FULL_DUPLEX_STREAMED it keeps no copy: from a body's first piece on it refuses in either case.
    `response_trailers`: tell the picker when a response of which it is shown no body is over.
    `stripped`: drop the client's own `x-gateway-destination-endpoint…` headers before the picker.
    `buffer_bytes`: what Envoy keeps of a body, so the largest request in BUFFERED; above it, 413.
    `http1_trailers`: pass trailers of HTTP/1 on, both ways; Envoy drops them otherwise.
    `picker_ca`: PEM bundle that signed the pickers' certificates; turns TLS to them on.
    """

    pickers: tuple[Address, ...]
    endpoints: tuple[Address, ...] = ()
    listen: Address = LOOPBACK
    admin: Address = LOOPBACK
    destination: Destination = "override_host"
    pick_source: PickSource = "metadata"
    request_body: BodyMode = "FULL_DUPLEX_STREAMED"
    response_body: BodyMode = "FULL_DUPLEX_STREAMED"
    response_headers: bool = True
    response_trailers: bool = False
    fail_open: bool = False
    subset: tuple[str, ...] | None = None
    stripped: bool = True
    message_timeout_s: float = 600.0
    retries: int = 2
    buffer_bytes: int = 64 * 1024**2
    http1_trailers: bool = False
    picker_ca: Path | None = None
    access_log: Path | None = None


def unharmed(options: GatewayOptions) -> GatewayOptions:
    """Return `options` in the modes in which the death of a picker costs no answer.

    Envoy keeps a copy of what it shows in BUFFERED and STREAMED, and goes on with that.
    """
    return msgspec.structs.replace(
        options, request_body="BUFFERED", response_body="STREAMED", fail_open=True
    )


EXAMPLE = unharmed(
    GatewayOptions(
        listen=Address("0.0.0.0", 8000),  # noqa: S104  a gateway serves others
        admin=Address("127.0.0.1", 9901),
        pickers=(Address("picker-0", 9002), Address("picker-1", 9002)),
        endpoints=(Address("engine-0", 8000), Address("engine-1", 8000)),
    )
)
"""What `kvmesh config envoy` prints, and `deploy/compose/gateway.yaml` runs."""
