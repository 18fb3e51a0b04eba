"""TLS of a gRPC server: HTTP/2 by ALPN."""

import ssl
from pathlib import Path
from typing import Final

from kvmesh.errors import ConfigError

_ALPN: Final = ["h2"]


def grpc_context(cert: Path, key: Path | None, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return the context of a port for gRPC. Raises `ConfigError` for unusable files."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    try:
        context.load_cert_chain(cert, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(str(path) for path in (cert, key, client_ca) if path is not None)
        raise ConfigError(f"TLS files {names}: {error}") from error
    return context
