"""`python -m tests.fixed_flags router --predict-ttl-s 0 …`: kvmesh, with its constants as flags.

What a router fixes (`Fixed` in kvmesh/settings/types.py) is no setting. A test that runs a process
of its own and must not wait, or count on what is predicted, starts it by this.
"""

from cyclopts import Parameter

from kvmesh.settings import spellings, types

types.Fixed = Parameter()  # before the settings are read
vars(spellings)["REMOVED"] = {}

from kvmesh.cli import main  # noqa: E402  behind what it reads

__all__ = ["main"]

if __name__ == "__main__":
    main()
