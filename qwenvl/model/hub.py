"""Names on the hub: what of a model is in the cache, and whether the hub answers. Imports no torch."""

from __future__ import annotations

import logging
import os
import re
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from qwenvl.model.weight_files import has_weights, weights_problem

SECONDS = 5.0
"""The longest wait for the hub. transformers would try each file five times, for minutes."""
logger = logging.getLogger(__name__)


def require_model(path: str | Path) -> None:
    """Raise where a path is neither a folder nor the name of a model on the hub that can be read from here.

    A name on the hub has an owner and one slash, and begins with a letter or a digit. With its model in the cache and
    no answer from the hub, this process and its children read the cache alone from then on.

    Raises:
        FileNotFoundError: it is a file, or neither a folder nor such a name.
        OSError: the model of this name is not in the cache, and the hub does not answer.
    """
    name = str(path)
    if Path(name).is_file():
        raise FileNotFoundError(f"{name}: a file; expected the folder of a model, or its name on the hub")
    if Path(name).is_dir():
        return
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name, re.ASCII):
        expected = "one that holds a checkpoint, or a name on the hub, as Qwen/Qwen3.5-4B"
        raise FileNotFoundError(f"{name}: no such folder; expected {expected}")
    problem = hub_problem()
    if problem is None:
        return
    if cached_folder(name) is None:
        raise OSError(f"{name}: no such folder, not in the cache, and {problem}: {_how_to_copy(name)}")
    _read_cache_alone(name, problem)


def require_weights(path: str | Path) -> None:
    """Raise where the hub does not answer and the cache holds a model without its weights, as a dry run leaves it.

    Raises:
        OSError: a weight file is missing.
    """
    name = str(path)
    problem = None if Path(name).is_dir() else hub_problem()
    if problem is None:
        return
    folder = cached_folder(name)
    if folder is None or not has_weights(folder) or weights_problem(folder):
        raise OSError(f"{name}: its weights are not all in the cache, and {problem}: {_how_to_copy(name)}")


def cached_folder(name: str) -> Path | None:
    """The folder of a model or an adapter in the cache of the hub. None where it holds none."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for file in ("config.json", "adapter_config.json"):
        try:
            found = try_to_load_from_cache(name, file)
        except HFValidationError:  # no model has such a name
            return None
        if isinstance(found, str):
            return Path(found).parent
    return None


def hub_problem() -> str | None:
    """The reason why nothing can be downloaded from the hub, in words. None where the hub answers."""
    from huggingface_hub import constants, is_offline_mode

    if is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    problem = _connection_problem(constants.ENDPOINT)
    return problem and f"the hub cannot be reached ({problem})"


@cache
def _connection_problem(address: str) -> str | None:
    """The reason why an address does not answer within ``SECONDS``, or None. An address is asked once in a process."""
    answers: SimpleQueue[str | None] = SimpleQueue()
    # In a thread: the look-up of a name knows no timeout, and takes a minute with some name servers.
    Thread(target=lambda: answers.put(_ask(address)), daemon=True).start()
    try:
        return answers.get(timeout=SECONDS)
    except Empty:
        return f"no answer from {address} within {SECONDS:g} seconds"


def _ask(address: str) -> str | None:
    """The error of one request, by the client of the hub with its proxies and certificates. None for any answer."""
    from huggingface_hub import get_session

    try:
        get_session().head(address, timeout=SECONDS)
    except Exception as error:  # a script may have set a client of its own, with errors of its own
        return f"{address}: {str(error) or type(error).__name__}"
    return None


def _read_cache_alone(name: str, problem: str) -> None:
    from huggingface_hub import constants, is_offline_mode

    if is_offline_mode():
        return
    logger.warning(f"{problem}: {name} and whatever else is on the hub is read from the cache")
    os.environ["HF_HUB_OFFLINE"] = "1"  # for processes that this one starts
    constants.HF_HUB_OFFLINE = True


def _how_to_copy(name: str) -> str:
    return f"run `hf download {name} --local-dir FOLDER` where it can, copy the folder here, and give its path"
