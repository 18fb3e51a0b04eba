"""The release notes: what CHANGELOG.md says of a version, and how to install it."""

import re
from typing import Final

from deploy.release.errors import ReleaseError

HOME: Final = "https://github.com/kvmesh/kvmesh"
HEADING: Final = re.compile(
    r"^## (?:\[(?P<version>[^]]+)\] - (?P<date>\d{4}-\d\d-\d\d)|.*)$", re.MULTILINE
)
REFERENCE: Final = re.compile(r"^\[[^]]+\]: \S+\n?", re.MULTILINE)
LINK: Final = re.compile(r"(\]\()(?![a-z]+:|#)")
PART: Final = re.compile(r"^(?=### )", re.MULTILINE)
ENTRY: Final = re.compile(r"^(?=- )", re.MULTILINE)
MOST_CHARACTERS: Final = 8000
"""Of what changed: nobody reads more on the page of a release."""


def find_section(changelog: str, version: str) -> tuple[str, str]:
    """Return date and text of a version. Raises `ReleaseError` where it has no words."""
    headings = list(HEADING.finditer(changelog))
    for number, heading in enumerate(headings, 1):
        if heading["version"] == version:
            end = headings[number].start() if number < len(headings) else len(changelog)
            text = REFERENCE.sub("", changelog[heading.end() : end]).strip()
            if not text:
                raise ReleaseError(f"CHANGELOG.md: the section of {version} is empty")
            return heading["date"], text
    raise ReleaseError(
        f"CHANGELOG.md has no section of {version}: give it the heading "
        f"`## [{version}] - YYYY-MM-DD` below `## Unreleased`"
    )


def shorten(section: str, rest: str) -> str:
    """Return as many entries of each heading as fit `MOST_CHARACTERS`; `rest` has the others."""
    parts = [ENTRY.split(part) for part in PART.split(section)]
    for most in range(max(map(len, parts)), 0, -1):
        text = ""
        for head, *entries in parts:
            text += head + "".join(entries[:most]).rstrip() + "\n"
            if left := len(entries[most:]):
                text += f"- {left} more: {rest}\n"
            text += "\n"
        if len(text) <= MOST_CHARACTERS:
            return text.strip()
    return f"What changed: {rest}"


def write_notes(changelog: str, version: str, missing: list[str]) -> str:
    """Return the notes; `missing` says what this release does not have, and why."""
    date, section = find_section(changelog, version)
    tree = f"{HOME}/blob/v{version}/"
    section = shorten(LINK.sub(rf"\1{tree}", section), f"[CHANGELOG.md]({tree}CHANGELOG.md)")
    absent = "".join(f"Not in this release: {what}.\n\n" for what in missing)
    return f"""# kvmesh {version} ({date})

```
sha256sum --check --ignore-missing SHA256SUMS
pip install --require-hashes --requirement constraints.txt
pip install --no-deps kvmesh-{version}-*.whl
pip install --no-deps kvmesh_lab-{version}-*.whl    # simulator, mocker, load: where they are used
```
The second line installs the versions this release was tested with; the wheel to take is that of
your interpreter and system. Where there is none, `pip install kvmesh-{version}.tar.gz` builds one,
with the compiled core where there is a C compiler.

{absent}{section}
"""
