"""Pages are one file and escape what they show."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from jinja2 import UndefinedError
from PIL import Image

from qwenvl.report.write import data_url, render


@pytest.fixture
def template(tmp_path):
    """``template(content)`` -> path of a page in a folder of its own."""

    def write(content: str) -> Path:
        path = tmp_path / "mine.html"
        path.write_text('{% extends "base.html" %}{% from "macros.html" import frames %}{% block content %}' + content)
        path.write_text(path.read_text() + "{% endblock %}")
        return path

    return write


def test_text_is_escaped_and_the_base_has_title_and_style(template):
    page = render(template("<p>{{ text }}</p>"), title="1 < 2", text='<script>"&"</script>')
    assert page.startswith('<!doctype html>\n<html lang="en">') and page.endswith("</html>")
    assert "<title>1 &lt; 2</title>" in page and "<h1>1 &lt; 2</h1>" in page and "<style>" in page
    assert "<p>&lt;script&gt;&#34;&amp;&#34;&lt;/script&gt;</p>" in page


def test_pictures_in_a_row(template):
    source = data_url(Image.new("RGB", (2, 2), "red"))
    segments = [None, 1, 9]  # the ninth has the colour of the first, since there are eight
    pictures = [
        SimpleNamespace(source=source, width=2, title=f"{n}", caption="a<b", segment=segment)
        for n, segment in enumerate(segments)
    ]
    page = render(template("{{ frames(pictures) }}"), title="", pictures=pictures)
    assert page.count(f'src="{source}" style="--own:2px"') == 3 and source.startswith("data:image/jpeg;base64,/9j/")
    assert page.count("<figure>") == 1 and page.count('<figure style="border-color:var(--s1)">') == 2
    assert re.findall(r'background:var\(--s(\d)\)"></i>(\d)', page) == [("1", "1"), ("1", "9")]
    assert page.count("<figcaption><b>0</b><br>a&lt;b</figcaption>") == 1
    assert (
        "legend" not in render(template("{{ frames(pictures[:1]) }}"), title="", pictures=pictures).split("</style>")[1]
    )


def test_a_name_that_is_not_given_is_an_error(template):
    with pytest.raises(UndefinedError, match="'rows' is undefined"):
        render(template("{% for row in rows %}{% endfor %}"), title="")
