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
    notes = write_notes(CHANGELOG, "1.1.0", ["the image (none)"])

    assert f"[page]({HOME}/blob/v1.1.0/docs/page.md#part)" in notes
    assert "[elsewhere](https://example.org/), [here](#added)" in notes
    assert "Not in this release: the image (none)." in notes


@pytest.mark.parametrize("entries", [1, 40, 400])
def test_notes_are_short_and_say_how_much_they_leave_out(entries: int) -> None:
    long = CHANGELOG.replace(
        "- A [page]", "- One of many changes that are told.\n" * entries + "- A [page]"
    )
    long = long.replace("[here](#added).", "[here](#added).\n### Security\n- Look at this.")

    notes = write_notes(long, "1.1.0", [])

    told = notes.count("One of many")
    link = f"[CHANGELOG.md]({HOME}/blob/v1.1.0/CHANGELOG.md)"
    assert len(notes) < 10_000
    assert "- Look at this." in notes
    assert (f"- {entries + 1 - told} more: {link}" in notes) == (told < entries)


def test_one_entry_that_is_too_long_is_left_to_the_changelog() -> None:
    notes = write_notes(CHANGELOG.replace("- A [page]", f"- {'x' * 9000} [page]"), "1.1.0", [])

    assert notes.rstrip().endswith(f"What changed: [CHANGELOG.md]({HOME}/blob/v1.1.0/CHANGELOG.md)")


def test_the_notes_of_this_version_and_of_the_next_are_short() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    following = changelog.replace("## Unreleased", "## [9.9.9] - 2030-01-01")

    for text, version in ((changelog, read_version(ROOT)), (following, "9.9.9")):
        assert 1000 < len(write_notes(text, version, []).encode()) < 10_000
