"""The site of the documentation: it builds strictly, shows what GitHub shows, and loads nothing from a network."""

import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
HOOKS = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))
PAGES = [*(ROOT / name for name in HOOKS["ROOT_PAGES"]), *sorted((ROOT / "docs").glob("*.md"))]
# What a difference would show: a list that became a paragraph, a table that became text, a block in the wrong place.
COUNTED = ("h1", "h2", "h3", "ol", "ul", "li", "table", "td", "pre")
OUTSIDE = re.compile(r"\s*(?:https?:)?//")
LOADED = {"src", "srcset", "href", "data", "poster", "action"}  # attributes, all but the links that readers follow


class Tags(HTMLParser):
    """The tags of a page with their attributes, ``article`` those of the text alone."""

    def __init__(self, text: str):
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.all.append((tag, dict(attributes)))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site. The build has no way to a network."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def built(site: Path, page: Path) -> str:
    name = HOOKS["ROOT_PAGES"].get(page.name, page.name) if page.parent == ROOT else page.name
    return (site / name).with_suffix(".html").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_site_shows_the_lists_and_tables_that_github_shows(page, site):
    expected = MarkdownIt("commonmark").enable("table").render(page.read_text(encoding="utf-8"))
    article = re.search(r"<article.*?</article>", built(site, page), flags=re.DOTALL)[0]
    counts = [Counter(tag for tag, _ in Tags(text).all if tag in COUNTED) for text in (expected, article)]
    assert counts[1] == counts[0], "Python-Markdown reads it otherwise: is there a blank line before each list?"


def test_links_lead_to_places_that_are_there(site):
    """Also those of notebooks, whose pages MkDocs does not check."""
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]
    tags = {path: Tags(path.read_text(encoding="utf-8")).all for path in pages}
    places = {path: {found["id"] for _, found in of if "id" in found} for path, of in tags.items()}
    missing = []
    for path, of in tags.items():
        for tag, found in of:
            name, _, place = (found.get("href") or "").partition("#")
            target = (path.parent / name).resolve() if name else path
            if tag == "a" and place and not OUTSIDE.match(name) and place not in places.get(target, ()):
                missing.append((path.name, found["href"]))
    assert not missing


def test_the_site_loads_nothing_from_a_network(site):
    for page in site.rglob("*.html"):
        for tag, attributes in Tags(page.read_text(encoding="utf-8")).all:
            if tag != "a":
                outside = [value for name, value in attributes.items() if name in LOADED and OUTSIDE.match(value or "")]
                assert outside == [], f"{page.name}: {tag}"
            # The script of the theme fetches what draws diagrams where a page has one.
            assert "mermaid" not in (attributes.get("class") or ""), page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(\s*[\"']?|@import\s+[\"']?)(?:https?:)?//", style.read_text(encoding="utf-8"))


def test_links_and_tabs_stand_out_from_their_ground(site, browser):
    """At least 4.5 to 1, the contrast of small texts in WCAG 2."""
    browser.show(1280)
    browser.open((site / "quickstart.html").as_uri())
    luminance = """text => text.match(/[0-9.]+/g).slice(0, 3).map(each => each / 255).map(
        each => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4
    ).reduce((sum, each, n) => sum + each * [0.2126, 0.7152, 0.0722][n], 0)"""
    style = "getComputedStyle(document.querySelector('{}')).{}"
    for text, ground in ((".md-typeset p a", "body"), (".md-tabs__link", ".md-tabs")):
        assert browser.run(style.format(text, "opacity")) == "1"
        colours = style.format(text, "color"), style.format(ground, "backgroundColor")
        of_text, of_ground = (browser.run(f"({luminance})({colour})") for colour in colours)
        light, dark = max(of_text, of_ground), min(of_text, of_ground)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, text


def test_the_search_works_in_pages_opened_from_a_disk(site, browser):
    for page in ("flags.html", "notebooks/first_run.html"):
        browser.open((site / page).as_uri())
        browser.run("document.querySelector('.md-search__input').focus()")
        browser.run("document.querySelector('.md-search__input').value = 'dual_clip'")
        browser.run("document.querySelector('.md-search__input').dispatchEvent(new KeyboardEvent('keyup'))")
        browser.wait("document.querySelector('.md-search-result').innerText.includes('Flags')")
        assert browser.errors == []
