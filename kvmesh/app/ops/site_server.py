"""The NATS server of a site of `kvmesh up`: a mesh's account, and one for each other site."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from kvmesh.actors.site_reporter import digest_subject
from kvmesh.app.ops.nats_isolation import site_account
from kvmesh.app.ops.nats_rights import site_rights

MESH: Final = "MESH"
"""The account of a mesh's processes."""


def site_conf(
    site: str, peers: Sequence[str], *, listen: int, hubs: Mapping[str, str], leaf: str
) -> str:
    """Return the accounts and leaf nodes of a site's server, as text for its configuration.

    Others join at the port `listen` (0: none do) by their names and the password `leaf`; this one
    joins `hubs`, URLs by site. The mesh's processes log in as nobody.
    """
    own = {"stream": digest_subject(site)}
    told = {one: {"stream": digest_subject(one)} for one in peers}
    accounts: dict[str, Any] = {
        MESH: {
            "jetstream": "enabled",
            "users": [{"user": "mesh", "password": "mesh"}],
            "exports": [own],
            "imports": [_of(site_account(one), told[one]) for one in peers],
        }
    }
    for one in peers:
        rights = site_rights(site, one).to_config()
        accounts[site_account(one)] = {
            "users": [{"user": one, "password": leaf, "permissions": rights}],
            "exports": [told[one]],
            "imports": [_of(MESH, own)],
        }
    leafnodes: dict[str, Any] = {
        "remotes": [{"url": url, "account": site_account(one)} for one, url in sorted(hubs.items())]
    }
    if listen:
        leafnodes |= {"listen": f"127.0.0.1:{listen}", "no_advertise": True}
    blocks = {"accounts": accounts, "no_auth_user": "mesh", "leafnodes": leafnodes}
    text = msgspec.json.format(msgspec.json.encode(blocks), indent=2).decode()
    return text.strip()[1:-1]


def _of(account: str, export: Mapping[str, str]) -> dict[str, Any]:
    return {"stream": {"account": account, "subject": export["stream"]}}
