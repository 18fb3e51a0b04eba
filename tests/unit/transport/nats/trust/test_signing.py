from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kvmesh.errors import ConfigError
from kvmesh.observe import get_logger
from kvmesh.ports import Refusals
from kvmesh.transport.nats.trust.anchors import encode_anchors
from kvmesh.transport.nats.trust.signing import Signing
from tests.unit.transport.nats.trust.keys import KEYS, MEMBERS, SECRETS

MANIFEST = "$KV.kvmesh_meta.manifest.chat"


def test_without_a_key_nothing_is_signed_and_all_is_believed() -> None:
    signing = Signing(get_logger())

    with capture_logs() as logs:
        signing.begin("kvmesh", None, None)

    assert (signing.signer, signing.guard, logs) == (None, None, [])
    assert signing.admits_value(MANIFEST, b"", b"{}", "")
    assert (signing.warnings(), signing.unverified()) == ((), Refusals())


def test_with_a_key_only_the_process_signs_and_says_that_it_does_not_verify() -> None:
    signing = Signing(get_logger())

    with capture_logs() as logs:
        Signing(get_logger()).begin("kvmesh", SECRETS["r0"], None, serves=False)
        assert not logs
        signing.begin("kvmesh", SECRETS["r0"], None)

    assert signing.signer is not None
    assert signing.guard is None
    assert "--nats-trust" in logs[0]["event"]
    assert signing.unverified() == Refusals(verifies=False)


def test_with_both_what_is_not_signed_counts_no_more(tmp_path: Path) -> None:
    path, signing = tmp_path / "trust.json", Signing(get_logger())
    path.write_bytes(encode_anchors(MEMBERS))
    signing.begin("kvmesh", SECRETS["r0"], path)

    assert not signing.admits_value(MANIFEST, b"", b"{}", "")
    reported = signing.unverified()
    assert reported.counts["unsigned", "manifest"] == 1
    assert (reported.verifies, reported.lines) == (True, signing.warnings())
    assert len(reported.lines) == 1


def test_a_trust_file_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs --nats-creds"):
        Signing(get_logger()).begin("kvmesh", None, tmp_path / KEYS["w0"])
