import ssl
from pathlib import Path

import pytest

from kvmesh.app.front.certificates import load_certificate
from kvmesh.app.front.front import tls_context, upstream_tls
from kvmesh.errors import ConfigError
from kvmesh.settings.http import HttpSettings, UpstreamSettings


def pem(path: Path, kind: str) -> Path:
    path.write_text(f"-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n")
    return path


def test_a_certificate_without_its_key_names_the_setting_that_is_missing(tmp_path: Path) -> None:
    cert = pem(tmp_path / "cert.pem", "CERTIFICATE")

    with pytest.raises(ConfigError, match="holds no private key: name its file with --tls-key"):
        tls_context(HttpSettings(tls_cert=cert))
    with pytest.raises(ConfigError, match=r"holds no private key.* --upstream-cert-key FILE"):
        upstream_tls(UpstreamSettings(upstream_cert=cert))


def test_half_of_the_settings_names_the_other_half(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"

    with pytest.raises(ConfigError, match=r"--tls-key .*key.pem is set without --tls-cert: name"):
        tls_context(HttpSettings(tls_key=key))
    with pytest.raises(ConfigError, match=r"--tls-client-ca .* is set without --tls-cert"):
        tls_context(HttpSettings(tls_client_ca=key))
    with pytest.raises(ConfigError, match=r"--upstream-cert-key .* is set without --upstream-cert"):
        upstream_tls(UpstreamSettings(upstream_cert_key=key))


def test_the_file_that_is_not_there_is_named_and_no_other(tmp_path: Path) -> None:
    cert, key = pem(tmp_path / "cert.pem", "CERTIFICATE"), tmp_path / "key.pem"

    with pytest.raises(ConfigError) as caught:
        tls_context(HttpSettings(tls_cert=cert, tls_key=key))

    assert str(caught.value) == f"--tls-key {key}: No such file or directory"


def test_files_that_are_no_chain_and_key_are_named_with_the_error(tmp_path: Path) -> None:
    cert, key = pem(tmp_path / "c.pem", "CERTIFICATE"), pem(tmp_path / "k.pem", "PRIVATE KEY")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    with pytest.raises(ConfigError, match=f"--a {cert}, --b {key}: .*; give a PEM chain"):
        load_certificate(context, ("--a", cert), ("--b", key))
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    with pytest.raises(ConfigError, match=f"--a {both}: .*; give a PEM chain"):
        load_certificate(context, ("--a", both), ("--b", None))
