import subprocess
import sys

import pytest

PROGRAM = """
import sys
for name in ("nats", "faststream", "nacl"):
    sys.modules[name] = None
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.router.command import RouterServer
from kvmesh.settings.roles import MetaRouterSettings, RouterSettings
import kvmesh.app.ops.snapshot, kvmesh.app.worker.command
RouterServer(RouterSettings(worker=("http://127.0.0.1:1",)))
MetaServer(MetaRouterSettings(replica=("code=http://127.0.0.1:1",)))
{more}
"""


@pytest.mark.parametrize(
    ("more", "code"),
    [("", 0), ("RouterServer(RouterSettings())", 1)],
    ids=["alone and with static replicas", "in a mesh"],
)
def test_only_who_has_an_event_plane_needs_nats(more: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(more=more)],
        capture_output=True,
        check=False,
        timeout=60,
        text=True,
    )

    assert ended.returncode == code, ended.stderr
    assert ("No module named 'nats" in ended.stderr) == bool(code)
