"""Build the documentation as a site: ``make site``.

    python scripts/dev/site.py [--out build/site]

The pages are copied to a temporary folder, where they keep their places in the project, so that links between them hold
as they stand; so is every file that a page links to. MkDocs builds them strictly with ``docs/mkdocs.yml``: a page that
is not in the navigation, a link or a heading that does not exist ends the build. Then no page may load anything from
another host. Exit status 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import Dict, Iterator, List, Set

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib import state_diagram

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "docs/mkdocs.yml"
COVER = "docs/cover.md"
"""The site's first page: its text stands before that of README.md, on the first page."""

PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "examples/*/*.md",
    "clients/*/*.md",
    "jetson/*.md",
    "profiles/*.md",
    "research/**/*.md",
)
"""The folder of the pages."""

DIAGRAM = re.compile(r"(?ms)^```mermaid\n(.*?)^```$")
"""Elsewhere a page's reader draws it; a browser would have to fetch a script for it from another host."""

FENCED = re.compile(r"(?ms)^\s*```.*?^\s*```$")
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)")
"""Tags and attributes that a browser fetches by itself when it shows a page."""


def pages(root: Path = ROOT) -> List[str]:
    """Every page, relative to the root."""
    return sorted(
        {
            path.relative_to(root).as_posix()
            for pattern in PATTERNS
            for path in root.glob(pattern)
            if "node_modules" not in path.parts and path != root / COVER
        }
    )


def linked(page: str, root: Path = ROOT) -> Set[str]:
    """The files of this project that a page links to or shows, relative to the root."""
    text = FENCED.sub("", (root / page).read_text(encoding="utf-8"))
    targets = {
        target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", target)
    }
    return {os.path.normpath(os.path.join(os.path.dirname(page), target)) for target in targets if target}


def in_navigation(config: str) -> List[str]:
    """The pages that the navigation of a ``mkdocs.yml`` names, in order."""
    return re.findall(r'(?m)^\s+- (?:"[^"*][^"\n]*"|[^:"\n]+): (\S+\.md)$', config.partition("\nnav:\n")[2])


def whole_navigation(config: str, root: Path = ROOT) -> str:
    """The configuration with each ``- "*": PATTERN`` of its navigation replaced by the pages that are named nowhere
    else, under their own headings."""
    named = set(in_navigation(config))
    lines: List[str] = []
    for line in config.splitlines():
        pattern = re.match(r'(\s+- )"\*": (\S+)$', line)
        if pattern is None:
            lines.append(line)
            continue
        for page in pages(root):
            if page not in named and PurePosixPath(page).match(pattern[2]):
                lines.append(f"{pattern[1]}{json.dumps(title_of((root / page).read_text(encoding='utf-8')))}: {page}")
    return "\n".join(lines) + "\n"


def title_of(text: str) -> str:
    """A page's first heading."""
    return re.sub(r"[`*]", "", re.findall(r"(?m)^# (.*)$", text)[0]).strip()


def adapted(text: str) -> str:
    """A page in the dialect of MkDocs, which differs in four points from where the page is read otherwise: nested items
    are indented by four, Markdown inside ``<details>`` needs an attribute, a comment ends with an empty line, and
    diagrams are drawings."""
    text = DIAGRAM.sub(lambda found: f"<div>{state_diagram.draw(found[1])}</div>", text)
    lines, fenced = [], False
    for line in text.splitlines():
        if re.match(r"\s*```", line):
            fenced = not fenced
        if not fenced:
            line = re.sub(r"^ {2,3}(?=(?:[-*]|\d+\.) )", "    ", line).replace("<details>", "<details markdown>")
        lines += [line, ""] if not fenced and re.match(r"<!-- .* -->$", line) else [line]
    return "\n".join(lines) + "\n"


def covered(cover: str, readme: str) -> str:
    """The first page: the cover, whose links are made those of a page in the root, and what README.md says."""

    def moved(found: re.Match[str]) -> str:
        place, mark, anchor = found[1].partition("#")
        return f"]({os.path.normpath(os.path.join(os.path.dirname(COVER), place))}{mark}{anchor})"

    text = re.sub(r"\]\((?![a-z]+:)([^)\s]+)\)", moved, cover)
    return f"---\nhide: [toc]\n---\n{text}\n{readme.partition(chr(10))[2]}"


def stage(place: Path, root: Path = ROOT) -> None:
    """Lay pages, what they link to and the configuration below ``place``."""
    for page in pages(root):
        text = adapted((root / page).read_text(encoding="utf-8"))
        names = linked(page, root)
        if page == "README.md" and (root / COVER).is_file():
            text = covered(adapted((root / COVER).read_text(encoding="utf-8")), text)
            names |= linked(COVER, root)
        write(place / "pages" / page, text)
        for name in names:
            if not name.endswith(".md") and (root / name).is_file():
                (place / "pages" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, place / "pages" / name)
    write(place / "mkdocs.yml", whole_navigation((root / CONFIG).read_text(encoding="utf-8"), root))


def write(path: Path, text: str) -> None:
    """Write a file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def loaded_from_elsewhere(site: Path) -> Iterator[str]:
    """``page: address`` of what the site's pages and styles would fetch from other hosts."""
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        text = path.read_text(encoding="utf-8")
        found = (
            LOADED.findall(text)
            if path.suffix == ".html"
            else re.findall(r"(?:@import\s+|url\()[\"']?((?:https?:)?//[^\"')\s]+)", text)
        )
        for address in found:
            yield f"{path.relative_to(site)}: {address}"


def build(out: Path, root: Path = ROOT) -> int:
    """Stage the pages below ``root``, build, look; the exit status."""
    with tempfile.TemporaryDirectory(prefix="edgeserve-site-") as place:
        stage(Path(place), root)
        quiet: Dict[str, str] = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        # Not --quiet: what is not told is not counted, and --strict finds nothing.
        done = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
            cwd=place,
            env=quiet,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if done.returncode != 0:
        print("\n".join(line for line in done.stdout.splitlines() if not line.startswith("INFO")))
        return 1
    foreign = list(loaded_from_elsewhere(out))
    print("\n".join(foreign) if foreign else f"{out}/index.html: {len(pages(root))} pages, every link holds")
    return 1 if foreign else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="build/site", help="folder for the site (default %(default)s)")
    return build(Path(parser.parse_args().out).resolve())


if __name__ == "__main__":
    sys.exit(main())
