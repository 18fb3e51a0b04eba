"""SECURITY.md promises nothing without the test that shows it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`((?:tests|deploy)/[\w/.-]+\.(?:py|sh|yaml))(?:::(\w+))?`")
TABLE_HEAD = re.compile(r"^\|.*\|\n\|[-|: ]+\|$", re.MULTILINE)
NO_PROMISE = "(no promise)"
"""Ends a paragraph that only warns: there is nothing to hold it against."""
WITHOUT = {"Report a weakness"}


def paragraphs() -> list[tuple[str, str]]:
    """Return (section, text) of each paragraph, list item and table row."""
    found = []
    for section in PAGE.split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        if title in WITHOUT:
            continue
        plain = TABLE_HEAD.sub("", text)
        blocks = re.split(r"\n\n|\n(?=- )|\n(?=\|)|\n(?=\*\*)", plain.strip())
        found += [(title, block.strip()) for block in blocks if block.strip()]
    return found


def test_every_promise_names_its_test_or_says_that_it_is_none() -> None:
    for section, text in paragraphs():
        assert NAMED.search(text) or text.rstrip(" |").endswith(NO_PROMISE), f"{section}: {text}"


def test_every_test_named_is_there() -> None:
    for path, name in NAMED.findall(PAGE):
        file = ROOT / path
        assert file.is_file(), path
        assert not name or f"def {name}(" in file.read_text(encoding="utf-8"), f"{path}::{name}"
