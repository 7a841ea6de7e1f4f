"""Pages are one file and escape what they show."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from qwenvl.report.write import render


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


def test_a_name_that_is_not_given_is_an_error(template):
    with pytest.raises(UndefinedError, match="'rows' is undefined"):
        render(template("{% for row in rows %}{% endfor %}"), title="")
