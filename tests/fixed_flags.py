"""`python -m tests.fixed_flags router --predict-ttl-s 0 …`: kvmesh, with its constants as flags.

What a router fixes (`Fixed` in kvmesh/settings/types.py) is no setting. A test that runs a process
of its own and must not wait, or count on what is predicted, starts it by this.
"""

from cyclopts import Parameter


def main() -> None:
    """Run the command line. Nothing of it may be loaded before."""
    from kvmesh.settings import spellings, types  # noqa: PLC0415  not where this is only imported

    types.Fixed = Parameter()
    vars(spellings)["REMOVED"] = {}
    from kvmesh.cli import main as run  # noqa: PLC0415  behind what it reads

    run()


if __name__ == "__main__":
    main()
