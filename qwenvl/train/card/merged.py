"""The card of a merged model: that of its adapter, with what has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

from qwenvl.data.saved_processor import SETTINGS_FILE
from qwenvl.train.card.document import CARD, Metadata, write_card
from qwenvl.train.card.trainer import base_on_the_hub


def describe_merged(adapter: str | Path, folder: str | Path, base: str) -> None:
    """Write into ``folder`` what the folder of an adapter tells of its training, and that it is merged now.

    Args:
        adapter: whose card and settings of prompts go along, where it has them.
        folder: of the merged model.
        base: the model that the adapter was folded into.
    """
    adapter, folder = Path(adapter), Path(folder)
    for name in (CARD, SETTINGS_FILE):
        if (adapter / name).is_file():
            shutil.copyfile(adapter / name, folder / name)
    metadata = Metadata(
        name=folder.name,
        library="transformers",
        base_model=base_on_the_hub(base),
        tags=("qwenvl", "merged"),
        results=None,
    )
    text = f"## Merged\n\nThe adapter that the sections here speak of is folded into `{base}`: these are whole weights."
    write_card(folder, f"# {Path(base).name} with an adapter merged\n", {"merged": text}, metadata)
