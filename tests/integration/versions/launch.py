"""Runs `kvmesh` as a build of another version would behave: `launch.py VERSION COMMAND …`.

It is this checkout with other numbers: `next` reads and writes one more format of journal,
bookings, snapshot and manifest, of the same shape but another number, which is all that an older
build sees of it.
`only-next` has given up the oldest format, as no build may while another one reads only that.
"""

import sys

from kvmesh import formats
from kvmesh.app.process import build
from kvmesh.formats import OWN, FormatRange, Formats


def raised(own: Formats, *, drops: bool = False) -> Formats:
    """Return the formats of the next version, which `drops` the oldest it had."""

    def next_of(reads: FormatRange) -> FormatRange:
        return FormatRange(reads.newest + 1 if drops else reads.oldest, reads.newest + 1)

    bookings = FormatRange(own.bookings.oldest, own.bookings.newest + 1)
    return Formats(next_of(own.journal), bookings, next_of(own.snapshot), next_of(own.manifest))


def become(version: str) -> None:
    """Change what modules that are not loaded yet will find. Nothing else may be loaded before."""
    own, name = raised(OWN, drops=version == "only-next"), "9.9.9"
    for module in (formats, build):
        vars(module)["OWN"] = own
    vars(build)["own_version"] = lambda: name


def main() -> None:
    version = sys.argv.pop(1)
    become(version)
    from tests.fixed_flags import main as run  # noqa: PLC0415  behind what it is to find

    run()


if __name__ == "__main__":
    main()
