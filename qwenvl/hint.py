"""Something worth a look in the data, which is no error."""

from __future__ import annotations

from typing import NamedTuple


class Hint(NamedTuple):
    """Something in a record that is no error and yet worth a look.

    Attributes:
        kind: a few words under which it is counted.
        message: a sentence that does not name the record, so that it is the same for all records it is true of.
    """

    kind: str
    message: str
