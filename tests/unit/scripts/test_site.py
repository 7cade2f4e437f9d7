"""The documentation as a site: every page is in the navigation, and what is staged keeps its links."""

from __future__ import annotations

import importlib.util
import re
from xml.etree import ElementTree

import pytest
from dev import site

CONFIG = (site.ROOT / site.CONFIG).read_text(encoding="utf-8")


def test_every_page_is_in_the_navigation_once():
    named = site.in_navigation(site.whole_navigation(CONFIG))
    assert sorted(named) == site.pages(), "docs/mkdocs.yml names each page in one place"


def test_what_pages_link_to_is_staged_beside_them(tmp_path):
    site.stage(tmp_path)
    staged = {path.relative_to(tmp_path / "pages").as_posix() for path in (tmp_path / "pages").rglob("*")}
    assert "docs/picture.svg" in staged and "docs/grafana/edgeserve.json" in staged
    missing = [(page, name) for page in site.pages() for name in site.linked(page) if name not in staged]
    assert missing == []


def test_the_first_page_is_the_cover_and_then_the_readme(tmp_path):
    site.stage(tmp_path)
    first = (tmp_path / "pages" / "README.md").read_text(encoding="utf-8")
    assert first.startswith("---\nhide: [toc]\n---\n# EdgeServe\n") and first.count("\n# EdgeServe") == 1
    assert "\n## For whom" in first and not (tmp_path / "pages" / site.COVER).exists()
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", first.partition("## For whom")[0])
    assert {"docs/research/overload.svg", "docs/research/orloj_finish.svg", "docs/research/mix_robot.svg"} < set(shown)
    assert [name for name in shown if not (tmp_path / "pages" / name).is_file()] == []


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None,
    reason="mkdocs-material is not installed (pip install '.[docs]'; make site does)",
)
def test_a_site_is_built_unless_a_link_leads_nowhere_or_a_page_is_left_out(tmp_path, capfd):
    root = tmp_path / "project"
    config = CONFIG.partition("\nnav:\n")[0] + "\nnav:\n  - One: docs/one.md\n  - Two: docs/two.md\n"
    one = root / "docs" / "one.md"
    for name, text in (("mkdocs.yml", config), ("two.md", "# Two\n\n## `a_b` and c\n"), ("one.md", "# One\n")):
        site.write(root / "docs" / name, text)
    one.write_text("# One\n\n[there](two.md#a_b-and-c)\n")
    assert site.build(tmp_path / "site", root) == 0
    assert "a_b-and-c" in (tmp_path / "site" / "docs" / "one.html").read_text()
    for wrong, said in (("[x](two.md#nowhere)", "#nowhere"), ("[x](three.md)", "three.md")):
        one.write_text(f"# One\n\n{wrong}\n")
        capfd.readouterr()
        assert site.build(tmp_path / "site", root) == 1
        assert said in capfd.readouterr().out
    site.write(root / "docs" / "four.md", "# Four\n")
    one.write_text("# One\n")
    assert site.build(tmp_path / "site", root) == 1
    assert "docs/four.md" in capfd.readouterr().out


DIAGRAM = """stateDiagram-v2
    [*] --> new
    new --> open : take, <hold>
    open --> new : again
    open --> done : finish
    new --> done : refuse
    done --> [*]
"""


def test_diagrams_are_drawings_with_every_state_and_word():
    page = site.adapted(f"# A\n\n```mermaid\n{DIAGRAM}```\n\n```\nplain\n```\n")
    assert "mermaid" not in page and "plain" in page
    root = ElementTree.fromstring(re.search(r"<svg.*</svg>", page)[0])
    texts = [text.text for text in root.iter("text")]
    assert sorted(texts) == ["again", "done", "finish", "new", "open", "refuse", "take, <hold>"]
    assert len(list(root.iter("rect"))) == 3
    assert len([path for path in root.iter("path") if "marker-end" in path.attrib]) == 4
