"""`python -m kvmesh`, and what the command `kvmesh` calls."""

import sys

from kvmesh.app.ops import health


def main() -> None:
    """Run the command line; a health check, which runs often, without loading it."""
    words = health.read_words(sys.argv[2:]) if sys.argv[1:2] == ["health"] else None
    if words is not None:
        health.command(words[0], ready=words[1])
        return
    from kvmesh.cli import main as run  # noqa: PLC0415  not for a health check

    run()


if __name__ == "__main__":
    main()
