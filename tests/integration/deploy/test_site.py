"""The documentation as a site: it builds strictly, loads nothing from elsewhere, and shows what
GitHub shows of the same files.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import markdown
import pytest
from markdown_it import MarkdownIt

from deploy.site.pages import OUTSIDE, REPOSITORY, for_python_markdown, with_site_links

ROOT = Path(__file__).parents[3]
SITE = ROOT / "deploy/site/mkdocs.yml"
SOURCES = sorted(
    [
        *(ROOT / "docs").glob("**/*.md"),
        *(ROOT / path for path in OUTSIDE if (ROOT / path).exists()),
    ]
)
EXTENSIONS = [
    "admonition",
    "attr_list",
    "md_in_html",
    "sane_lists",
    "tables",
    "pymdownx.superfences",
]
SHAPE = re.compile(r"<(h[1-6]|table|tr|t[dh]|li|ul|ol|pre|blockquote|img|code)\b")
LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\bsrc=["']?(https?:)?//|@import|<link[^>]*rel=["']?(?:stylesheet|preconnect)["']?[^>]*href=["']?(?:https?:)?//"""
)

STARS = 'data-md-component="source"'
"""What has the theme ask GitHub's API for the repository's stars."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = ["mkdocs", "build", "--strict", "--config-file", str(SITE), "--site-dir", str(folder)]

    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=ROOT
    )

    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built_and_none_loads_anything_from_elsewhere(built: Path) -> None:
    html = {page: page.read_text() for page in built.glob("**/*.html")}

    assert len(html) == len(SOURCES) + 1  # and the page for paths that do not exist
    assert not [str(page) for page, text in html.items() if LOADED.search(text)]
    assert not [str(page) for page, text in html.items() if STARS in text]


def test_no_page_asks_for_a_diagram_to_be_drawn_by_a_script_of_a_cdn(built: Path) -> None:
    drawn = [page for page in built.glob("**/*.html") if 'class="mermaid"' in page.read_text()]

    assert not drawn


def test_the_first_page_leads_to_every_section(built: Path) -> None:
    home = (built / "index.html").read_text()

    for section in ("start", "operate", "workloads", "gateways", "reference", "measured"):
        assert f'href="{section}/' in home


@pytest.mark.parametrize("page", SOURCES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_site_shows_what_github_shows(page: Path) -> None:
    text = page.read_text()
    github = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)

    site = markdown.markdown(for_python_markdown(text), extensions=EXTENSIONS)

    assert Counter(SHAPE.findall(site)) == Counter(SHAPE.findall(github))


def test_links_between_files_of_the_repository_lead_to_the_site_or_to_the_repository() -> None:
    text = (
        "[a](../../SECURITY.md#bounds) [b](concepts.md#cost) [c](../../kvmesh/cli.py)\n"
        "```\n[d](../../SECURITY.md)\n```\n"
        "[e](https://nats.io) [f](#here) [g](../../deploy/) [h](../../tests/unit) [i](gone.md)"
    )

    led = with_site_links(text, "start/quickstart.md")

    assert led == (
        "[a](../operate/security-model.md#bounds) [b](concepts.md#cost) "
        f"[c]({REPOSITORY}/blob/main/kvmesh/cli.py)\n"
        "```\n[d](../../SECURITY.md)\n```\n"
        "[e](https://nats.io) [f](#here) [g](../operate/deploy.md) "
        f"[h]({REPOSITORY}/tree/main/tests/unit) [i](gone.md)"
    )


def test_a_page_from_outside_docs_leads_to_pages_of_docs() -> None:
    led = with_site_links(
        "[a](docs/start/concepts.md) [b](SECURITY.md)", OUTSIDE["ARCHITECTURE.md"]
    )

    assert led == "[a](../start/concepts.md) [b](../operate/security-model.md)"


def test_blocks_that_follow_a_line_of_text_get_the_blank_line_that_they_need() -> None:
    text = (
        "Text:\n- one\n  more\n- two\n\nText:\n| a |\n|---|\n| b |\n## Title\n"
        "1. step\n   ```\n   - no\n   ```\n   more\n2. step\n"
    )

    lines = for_python_markdown(text)

    assert re.sub("\n\n+", "\n\n", lines.strip()) == (
        "Text:\n\n- one\n  more\n- two\n\nText:\n\n| a |\n|---|\n| b |\n\n## Title\n\n1. step\n\n"
        "    ```\n    - no\n    ```\n\n    more\n\n2. step"
    )
