"""A site's others for people: how far away they are, how busy, and who was served there."""

import msgspec

from kvmesh.core.sites.sites import SiteView


class Trip(msgspec.Struct, frozen=True):
    """A request that was served at another site, and why; `at` is when its answer began."""

    request: str
    site: str
    why: str
    at: float


class SitesStatus(msgspec.Struct, frozen=True):
    """`site` is the own one: `stayed` requests were served there, `trips` are the last that were
    not. `told_bytes` of digests were sent to the `sites`.
    """

    site: str
    stayed: int
    told_bytes: int
    sites: list[SiteView]
    trips: list[Trip]
