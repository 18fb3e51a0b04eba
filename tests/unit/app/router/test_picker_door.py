from pathlib import Path

import pytest

from kvmesh.app.router.picker_door import grpc_tls
from kvmesh.errors import ConfigError
from kvmesh.settings.picker import GrpcSettings

TLS = Path(__file__).parents[3] / "fixtures/tls"


def test_without_a_certificate_the_port_speaks_plainly() -> None:
    assert grpc_tls(GrpcSettings()) is None


@pytest.mark.parametrize(
    ("flag", "settings"),
    [
        ("--grpc-tls-key", GrpcSettings(grpc_tls_key=TLS / "key.pem")),
        ("--grpc-tls-client-ca", GrpcSettings(grpc_tls_client_ca=TLS / "cert.pem")),
    ],
)
def test_a_file_that_needs_a_certificate_is_refused_without_it(
    flag: str, settings: GrpcSettings
) -> None:
    with pytest.raises(ConfigError, match=f"{flag} .* is set without --grpc-tls-cert"):
        grpc_tls(settings)


def test_a_certificate_that_cannot_be_read_is_said_with_its_flag_and_file() -> None:
    settings = GrpcSettings(grpc_tls_cert=TLS / "none.pem", grpc_tls_key=TLS / "key.pem")

    with pytest.raises(ConfigError, match=r"--grpc-tls-cert.*none\.pem"):
        grpc_tls(settings)
