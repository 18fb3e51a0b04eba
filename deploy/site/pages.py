"""What mkdocs is told of this repository: pages that lie outside docs/, links between files of the
repository, and the blank lines that GitHub does without and Python-Markdown needs.

mkdocs calls `on_files` and `on_page_markdown` (https://www.mkdocs.org/user-guide/configuration/#hooks).
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/kvmesh/kvmesh"
OUTSIDE = {
    "ARCHITECTURE.md": "contribute/architecture.md",
    "CONTRIBUTING.md": "contribute/contributing.md",
    "CHANGELOG.md": "contribute/changelog.md",
    "SECURITY.md": "operate/security-model.md",
    "benchmarks/README.md": "measured/benchmarks.md",
    "deploy/README.md": "operate/deploy.md",
    "examples/README.md": "start/examples.md",
}
LINK = re.compile(r"(?<!`)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"^ {0,3}(```|~~~)")
OPENS = (
    re.compile(r"^(?:[-*+]|\d+\.) "),  # a list
    re.compile(r"^\|"),  # a table
    re.compile(r"^#{1,6} "),  # a heading
    re.compile(r"^>"),  # a quotation
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    for path, uri in OUTSIDE.items():
        if (ROOT / path).exists():
            files.append(File.generated(config, uri, content=(ROOT / path).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return the page as Python-Markdown has to be given it, with the site's links."""
    return for_python_markdown(with_site_links(markdown, page.file.src_uri))


def site_uri(path: str) -> str | None:
    """Return where the site has a file of the repository, by its path from the root."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def with_site_links(markdown: str, uri: str) -> str:
    """Return the page with links to files of the repository leading to the site's page of each, or
    to the repository where the site has none. A link to nothing stays as it is: the build fails.
    """
    source = next((path for path, of in OUTSIDE.items() if of == uri), f"docs/{uri}")

    def lead(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            return match[0]
        on_site = None if (ROOT / path).is_dir() else site_uri(path)
        if on_site is None and (ROOT / path / "README.md").exists():
            on_site = site_uri(f"{path}/README.md")
        if on_site is not None:
            return f"]({posixpath.relpath(on_site, posixpath.dirname(uri) or '.')}{anchor})"
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{path}{anchor})"

    return "".join(text if fenced else LINK.sub(lead, text) for text, fenced in parts(markdown))


def for_python_markdown(markdown: str) -> str:
    """Return the page with a blank line before each list, table, heading and quotation, and with
    the fenced blocks of list items, and what follows them there, as far in as Python-Markdown
    asks: four columns.
    """
    lines: list[str] = []
    deeper = ""
    for text, fenced in parts(markdown):
        if fenced:
            indent = len(text) - len(text.lstrip(" "))
            deeper = " " * (4 - indent if indent else 0)
            lines += ["", *(f"{deeper}{line}" for line in text.splitlines()), ""]
            continue
        opened: re.Pattern[str] | None = None
        for line in text.splitlines():
            opens = next((kind for kind in OPENS if kind.match(line)), None)
            if opens is not None and opens is not opened:
                lines.append("")
            if opens is not None or not line.strip():
                opened = opens
            if line.strip() and not line.startswith(" "):
                deeper = ""
            lines.append(f"{deeper}{line}" if line.strip() else line)
    return "\n".join(lines) + "\n"


def parts(markdown: str) -> list[tuple[str, bool]]:
    """Return the page cut into what stands between fences (False) and fenced blocks (True)."""
    found: list[tuple[str, bool]] = []
    lines: list[str] = []
    fence = ""
    for line in markdown.splitlines(keepends=True):
        opens = FENCE.match(line)
        if not fence and opens:
            found.append(("".join(lines), False))
            lines, fence = [line], opens[1]
        elif fence and line.strip() == fence:
            found.append(("".join([*lines, line]), True))
            lines, fence = [], ""
        else:
            lines.append(line)
    return [*found, ("".join(lines), bool(fence))]
