"""Release notes are cut from CHANGELOG.md."""

from pathlib import Path

import pytest

from deploy.release.checks import read_version
from deploy.release.errors import ReleaseError
from deploy.release.notes import HOME, find_section, write_notes

ROOT = Path(__file__).parents[3]
CHANGELOG = """# Changelog
## Unreleased
- Later.

## [1.1.0] - 2026-02-01
### Added
- A [page](docs/page.md#part), [elsewhere](https://example.org/), [here](#added).

## [1.0.0] - 2026-01-01
- First.

[1.1.0]: https://example.org/1.1.0
[1.0.0]: https://example.org/1.0.0
"""


def test_a_section_ends_where_the_next_begins() -> None:
    date, text = find_section(CHANGELOG, "1.1.0")

    assert date == "2026-02-01"
    assert text.startswith("### Added\n- A [page]")
    assert "First" not in text
    assert "Later" not in text


def test_the_last_section_ends_before_the_references() -> None:
    assert find_section(CHANGELOG, "1.0.0") == ("2026-01-01", "- First.")


def test_a_version_is_found_as_a_whole() -> None:
    with pytest.raises(ReleaseError, match=r"no section of 1\.0"):
        find_section(CHANGELOG, "1.0")


def test_links_lead_to_the_tree_of_the_version() -> None:
    notes = write_notes(CHANGELOG, "1.1.0", [Path("kvmesh-1.1.0.tar.gz")], ["the image (none)"])

    assert f"[page]({HOME}/blob/v1.1.0/docs/page.md#part)" in notes
    assert "[elsewhere](https://example.org/), [here](#added)" in notes
    assert "- `kvmesh-1.1.0.tar.gz`" in notes
    assert "Not in this release: the image (none)." in notes


def test_the_notes_of_this_version_fit_where_they_are_published() -> None:
    """GitHub takes 125,000 characters."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert 1000 < len(write_notes(changelog, read_version(ROOT), [], [])) < 125_000
