"""Writes HTML pages that need no network, in the style that all of them share."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

if TYPE_CHECKING:
    from PIL.Image import Image

TEMPLATES = Path(__file__).parent  # base.html, which pages extend, and macros.html


def render(template: Path, **values: Any) -> str:
    """Fill a Jinja template. It may extend ``base.html`` and import from ``macros.html``.

    Args:
        template: the file. Templates beside it can be included by name.
        values: what it is filled with. Text is escaped.

    Raises:
        jinja2.UndefinedError: the template names a value that is not given.

    Example:
        >>> render(Path("preview.html"), title="My records", rows=[])
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)


def data_url(picture: Image) -> str:
    """A picture as JPEG in the text of an ``src`` attribute."""
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
