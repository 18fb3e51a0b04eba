from pathlib import Path

from kvmesh.app.ops.nats_accounts import write_trust
from kvmesh.app.ops.nats_members import AccountsOptions, keyed_members
from kvmesh.transport.nats.trust.anchors import read_anchors
from kvmesh.transport.nats.trust.claim import Claim


def test_everybody_who_logs_in_is_in_the_trust_file(tmp_path: Path) -> None:
    options = AccountsOptions(out=tmp_path, worker=("chat/w0:2", "code/*"), router=("chat/r0",))
    members = keyed_members(options)

    path = write_trust(tmp_path, members)

    anchors, keys = read_anchors(path), {one.file_name: one.public_key for one in members}
    assert len(anchors) == len(members)
    may = {
        "worker.chat.w0.nk": Claim("worker heartbeat", "chat", "w0-dp1"),
        "worker.code.any.nk": Claim("worker heartbeat", "code", "w9"),
        "router.chat.r0.nk": Claim("manifest", "chat"),
    }
    assert all(anchors.find_signer(keys[name], claim) for name, claim in may.items())


def test_an_unchanged_file_is_not_written_and_a_changed_one_in_place(tmp_path: Path) -> None:
    options = AccountsOptions(out=tmp_path, router=("chat/r0",))
    path = write_trust(tmp_path, keyed_members(options))
    before = path.stat()
    assert before.st_mode & 0o777 == 0o644

    write_trust(tmp_path, keyed_members(options))
    assert path.stat().st_mtime_ns == before.st_mtime_ns

    (tmp_path / "seeds" / "router.chat.r0.nk").unlink()
    write_trust(tmp_path, keyed_members(options))
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime_ns > before.st_mtime_ns
