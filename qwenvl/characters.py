"""Classes of characters that several readers of text need."""

from __future__ import annotations

CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Chinese and Japanese characters, for the square brackets of a regular expression."""
