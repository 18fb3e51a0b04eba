"""The NATS server of a site: a mesh's account, and one of digests alone that leaf nodes join."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from kvmesh.actors.site_reporter import digest_subject

MESH: Final = "MESH"
SITES: Final = "SITES"
"""Accounts. Nothing crosses to another site but what the second one has."""


def site_conf(
    site: str, peers: Sequence[str], *, listen: int, hubs: Mapping[str, str], leaf: str
) -> str:
    """Return the accounts and leaf nodes of a site's server, as text for its configuration.

    Others join at the port `listen` (0: none do) as user `leaf` of that password; this one joins
    `hubs`, URLs by site. The mesh's processes log in as nobody.
    """
    own, told = f"{digest_subject(site, '>')}", [digest_subject(one, ">") for one in peers]
    accounts: dict[str, Any] = {
        MESH: {
            "jetstream": "enabled",
            "users": [{"user": "mesh", "password": "mesh"}],
            "exports": [{"stream": own}],
            "imports": [{"stream": {"account": SITES, "subject": one}} for one in told],
        },
        SITES: {
            "users": [{"user": "leaf", "password": leaf}],
            "exports": [{"stream": one} for one in told],
            "imports": [{"stream": {"account": MESH, "subject": own}}],
        },
    }
    leafnodes: dict[str, Any] = {
        "remotes": [{"url": url, "account": SITES} for _, url in sorted(hubs.items())]
    }
    if listen:
        leafnodes |= {"listen": f"127.0.0.1:{listen}", "no_advertise": True}
    blocks = {"accounts": accounts, "no_auth_user": "mesh", "leafnodes": leafnodes}
    text = msgspec.json.format(msgspec.json.encode(blocks), indent=2).decode()
    return text.strip()[1:-1]
