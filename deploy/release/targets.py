"""For which systems and interpreters wheels are made."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Target:
    """A system: `tags` of its wheels, the best known last, `triple` as zig names it and `soabi` as
    CPython does.
    """

    tags: tuple[str, ...]
    triple: str
    soabi: str

    @property
    def name(self) -> str:
        """Return what it is called on the command line: `manylinux2014_x86_64`."""
        return self.tags[-1]

    @property
    def machine(self) -> str:
        """Return its architecture: x86_64 or aarch64."""
        return self.triple.split("-", 1)[0]

    @property
    def libc(self) -> str:
        """Return the C library that must be named anew, "" for glibc: zig names that one right."""
        return f"libc.musl-{self.machine}.so.1" if self.triple.endswith("musl") else ""

    def knows(self, flag: str) -> bool:
        """Return whether a compiler for this system takes a hardening flag of pyproject.toml."""
        return self.machine == "x86_64" or not flag.startswith("-fcf-protection")


GLIBC: Final = "2.17"
"""The oldest one that wheels run with: that of manylinux2014 (PEP 599)."""

TARGETS: Final = (
    *(
        Target(
            (f"manylinux_2_17_{machine}", f"manylinux2014_{machine}"),
            f"{machine}-linux-gnu.{GLIBC}",
            f"{machine}-linux-gnu",
        )
        for machine in ("x86_64", "aarch64")
    ),
    *(
        Target((f"musllinux_1_2_{machine}",), f"{machine}-linux-musl", f"{machine}-linux-musl")
        for machine in ("x86_64", "aarch64")
    ),
)
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")


def interpreter_tag(python: str) -> str:
    """Return `cp311` of `3.11`."""
    return "cp" + python.replace(".", "")
