"""`python -m tests.contract.wire FOLDER` writes the bytes of every case, as encoded here."""

import sys
from pathlib import Path

from tests.contract.wire.cases import CASES


def main(folder: Path) -> None:
    """Write a file a case. See tests/fixtures/wire/README.md for when."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        (folder / f"{name}.bin").write_bytes(case.write())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
