"""How a program of somebody else's logs in at the mesh."""

from pathlib import Path

import msgspec

from kvmesh.app.process.running_mesh import find_mesh
from kvmesh.settings.roles import NatsSettings


class NatsLogin(msgspec.Struct, frozen=True, kw_only=True):
    """How a program logs in at the mesh's NATS server; empty: as anybody.

    `namespace`: first word of every subject. `creds`, `tls_ca`, `trust`: the files that
    `--nats-creds`, `--nats-tls-ca` and `--nats-trust` name.
    """

    namespace: str = "kvmesh"
    creds: Path | None = None
    tls_ca: Path | None = None
    trust: Path | None = None

    def settings(self, nats_url: str) -> NatsSettings:
        """Return these as the settings of a process; "": in the `kvmesh up` that runs here.

        Raises `ConfigError` where several run.
        """
        mesh = None if nats_url else find_mesh("nats_url")
        return NatsSettings(
            nats_url=nats_url if mesh is None else mesh.nats_url,
            namespace=self.namespace if mesh is None else mesh.namespace,
            nats_creds=self.creds,
            nats_tls_ca=self.tls_ca,
            nats_trust=self.trust,
        )
