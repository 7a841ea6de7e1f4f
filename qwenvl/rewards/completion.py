"""The text of a completion, readable as other libraries' reward functions expect it."""

from __future__ import annotations

from typing import Any


class Completion(str):
    """A string that can also be read as a conversation of one message.

    TRL gives reward functions either strings or, for chat prompts, lists of one message, and functions written for the
    latter say ``completion[0]["content"]``. Both ways of reading work here, so that such functions run unchanged:

        >>> Completion("four")[0]["content"], Completion("four")[0], Completion("four")[1:]
        ('four', 'f', 'our')
    """

    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        if key == 0 or key == -1:
            return _End(self, str(self)[key : key + 1 or None])
        return super().__getitem__(key)


class _End(str):
    """The first or last character of a completion, which also answers ``["content"]`` and ``["role"]``."""

    __slots__ = ("message",)

    def __new__(cls, text: str, character: str) -> _End:
        end = super().__new__(cls, character)
        end.message = {"role": "assistant", "content": str(text)}
        return end

    def __getitem__(self, key: Any) -> str:
        return self.message[key] if isinstance(key, str) else super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self.message.get(key, default)

    def __reduce__(self):
        return str, (str(self),)
