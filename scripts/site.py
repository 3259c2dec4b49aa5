"""Hooks of the documentation site (mkdocs.yml): pages of the root folder, and generated parts.

The pages are written for readers of the repository: README and others lie in the root folder, and
links lead from file to file there. The site takes them in, and links follow.
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.reference import python  # noqa: E402

# a page of the root folder → its place on the site
ROOT_PAGES = {
    "README.md": "index.md",
    **{
        f"{name}.md": f"{name}.md"
        for name in ("BENCHMARKS", "CHANGELOG", "CONTRIBUTING", "SECURITY")
    },
}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
ESCAPED_PIPE = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")
MODULES = "<!-- generated: python -->"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List all decisions in the navigation."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    development = next(part["Development"] for part in config.nav or () if "Development" in part)
    pages = [f"decisions/{name}" for name in decisions if name != "README.md"]
    development.append({"Decisions": ["decisions/README.md", *pages]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in the pages of the root folder."""
    for name, place in ROOT_PAGES.items():
        text = _with_links((ROOT / name).read_text(), name, place)
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill in the generated parts, and let links lead to pages of the site."""
    place = page.file.src_uri
    if place not in ROOT_PAGES.values():
        markdown = _with_links(markdown, f"docs/{place}", place)
    markdown = TABLE_ROW.sub(lambda row: ESCAPED_PIPE.sub(_code, row[0]), markdown)
    return markdown.replace(MODULES, python())


def _code(match: re.Match[str]) -> str:
    """Write code with a pipe as HTML: in tables GitHub hides the backslash, this site does not."""
    text = html.escape(match[1].replace("\\|", "|"), quote=False)
    return f"<code>{text.replace('|', '&#124;')}</code>"


def _with_links(markdown: str, source: str, place: str) -> str:
    """Turn links between files of the repository into links between pages of the site.

    `source` is the page's path in the repository, `place` its path on the site. Of a link to a file
    that is no page only the label stays.
    """

    def replace(match: re.Match[str]) -> str:
        label, link = match.groups()
        target, hash_sign, anchor = link.partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path in ROOT_PAGES:
            linked = ROOT_PAGES[path]
        elif path.startswith("docs/") and (ROOT / path).is_file():
            linked = path.removeprefix("docs/")
        elif (ROOT / path / "README.md").is_file() and path.startswith("docs/"):
            linked = f"{path.removeprefix('docs/')}/README.md"
        else:
            return label
        there = posixpath.relpath(linked, posixpath.dirname(place) or ".")
        return f"[{label}]({there}{hash_sign}{anchor})"

    return LINK.sub(replace, markdown)
