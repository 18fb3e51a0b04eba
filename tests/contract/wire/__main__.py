"""`python -m tests.contract.wire v1` writes the bytes of its cases, as encoded here."""

import sys

from tests.contract.wire.cases import CASES
from tests.contract.wire.record import FOLDER


def main(version: str) -> None:
    """Write a file a case. See tests/fixtures/wire/README.md for when."""
    folder = FOLDER / version
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in CASES[version].items():
        (folder / f"{name}.bin").write_bytes(case.write())


if __name__ == "__main__":
    main(sys.argv[1])
