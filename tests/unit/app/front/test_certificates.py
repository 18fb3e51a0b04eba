import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from kvmesh.app.front.certificates import load_certificate
from kvmesh.app.front.front import tls_context, upstream_tls
from kvmesh.errors import ConfigError
from kvmesh.settings.http import HttpSettings, UpstreamSettings

TLS = Path(__file__).parents[3] / "fixtures/tls"


def make_certificate(cert: Path, key: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-keyout", key, "-out", cert, "-days", "2", "-nodes", "-subj", "/CN=localhost"],
        check=True, capture_output=True,
    )  # fmt: skip


def served(context: ssl.SSLContext, name: str | None) -> bytes | None:
    """Return the certificate that a handshake with `context` shows, through memory alone."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there, server_hostname=name)
    theirs = context.wrap_bio(there, back, server_side=True)
    for one in (ours, theirs, ours, theirs):
        with contextlib.suppress(ssl.SSLWantReadError):
            one.do_handshake()
    return ours.getpeercert(binary_form=True)


@pytest.mark.parametrize("name", ["localhost", None])
def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path, name: str | None) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(TLS / "cert.pem", cert)
    shutil.copy(TLS / "key.pem", key)
    context = tls_context(HttpSettings(tls_cert=cert, tls_key=key))
    assert context is not None

    first = served(context, name)
    cert.write_text("half a certif")
    kept = served(context, name)
    make_certificate(cert, key)
    renewed = served(context, name)

    assert first == kept == ssl.PEM_cert_to_DER_cert((TLS / "cert.pem").read_text())
    assert renewed == ssl.PEM_cert_to_DER_cert(cert.read_text())


def pem(path: Path, kind: str) -> Path:
    path.write_text(f"-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n")
    return path


def test_a_certificate_without_its_key_names_the_setting_that_is_missing(tmp_path: Path) -> None:
    cert = pem(tmp_path / "cert.pem", "CERTIFICATE")

    with pytest.raises(ConfigError, match="holds no private key: name its file with --tls-key"):
        tls_context(HttpSettings(tls_cert=cert))
    with pytest.raises(ConfigError, match="holds no private key: put it behind the chain"):
        upstream_tls(UpstreamSettings(upstream_cert=cert))


def test_half_of_the_settings_names_the_other_half(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"

    with pytest.raises(ConfigError, match=r"--tls-key .*key.pem is set without --tls-cert: name"):
        tls_context(HttpSettings(tls_key=key))
    with pytest.raises(ConfigError, match=r"--tls-client-ca .* is set without --tls-cert"):
        tls_context(HttpSettings(tls_client_ca=key))


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
