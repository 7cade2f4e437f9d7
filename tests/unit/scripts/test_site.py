"""The documentation as a site: every page is in the navigation, and what is staged keeps its links."""

from __future__ import annotations

import importlib.util
import re
from xml.etree import ElementTree

import pytest
from dev import site
from lib import state_diagram

CONFIG = (site.ROOT / site.CONFIG).read_text(encoding="utf-8")


def test_every_page_is_in_the_navigation_once():
    named = site.in_navigation(site.whole_navigation(CONFIG))
    assert sorted(named) == site.pages(), "docs/mkdocs.yml names each page in one place"


def test_a_star_stands_for_the_pages_that_are_named_nowhere_else(tmp_path):
    config = 'x\nnav:\n  - One: docs/one.md\n  - More:\n      - "*": docs/*.md\n'
    for name, heading in (("one", "One"), ("two", "The `two`: more"), ("three", "Three")):
        site.write(tmp_path / "docs" / f"{name}.md", f"text\n# {heading}\n")
    whole = site.whole_navigation(config, tmp_path)
    assert whole.splitlines()[-2:] == ['      - "Three": docs/three.md', '      - "The two: more": docs/two.md']
    assert site.in_navigation(whole) == ["docs/one.md", "docs/three.md", "docs/two.md"]


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


def test_pages_are_adapted_outside_fences_alone():
    page = "* a\n  - b\n\n```\n  - c\n<!-- d -->\n```\n<!-- e -->\n| f |\n<details><summary>g</summary>\n"
    assert site.adapted(page) == (
        "* a\n    - b\n\n```\n  - c\n<!-- d -->\n```\n<!-- e -->\n\n| f |\n<details markdown><summary>g</summary>\n"
    )


def test_what_a_page_would_fetch_from_elsewhere_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="https://x.org">no</a><link href="a.css"><script src="//cdn.org/x.js">')
    (tmp_path / "b.css").write_text("@font-face {src: url(https://fonts.org/f)} a {background: url(data:image/png)}")
    assert list(site.loaded_from_elsewhere(tmp_path)) == ["a.html: //cdn.org/x.js", "b.css: https://fonts.org/f"]


def test_the_configuration_asks_for_strict_links_and_no_font():
    for line in (
        "  font: false",
        "  nav: {omitted_files: warn, not_found: warn, absolute_links: warn}",
        "  links: {not_found: warn, anchors: warn, absolute_links: warn, unrecognized_links: warn}",
    ):
        assert line in CONFIG.splitlines()
    assert not re.search(r"https?://", CONFIG)


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


def test_states_stand_in_columns_and_no_box_lies_on_another():
    edges = state_diagram.read(DIAGRAM)
    assert [(edge.source, edge.target) for edge in edges] == [
        ("new", "open"),
        ("open", "new"),
        ("open", "done"),
        ("new", "done"),
    ]
    column, back = state_diagram.columns(edges)
    assert column == {"new": 0, "open": 1, "done": 2} and back == {("open", "new")}
    page = (site.ROOT / "docs/reference/lifecycle.md").read_text(encoding="utf-8")
    for text in site.DIAGRAM.findall(page):
        boxes = [
            (float(box.get("x")), float(box.get("y")))
            for box in ElementTree.fromstring(state_diagram.draw(text)).iter("rect")
        ]
        assert len(boxes) >= 6
        for number, (x, y) in enumerate(boxes):
            assert all(
                abs(x - other_x) >= state_diagram.WIDTH or abs(y - other_y) >= state_diagram.HEIGHT
                for other_x, other_y in boxes[:number]
            )
