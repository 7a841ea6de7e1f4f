"""Makes chat messages with typed parts from records, and renders them with the model's chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qwenvl.data.records.forms import MEDIA_TAG
from qwenvl.types import Message, Record

if TYPE_CHECKING:
    from transformers import ProcessorMixin

TURN_START = "<|im_start|>"  # begins each turn in the chat templates of the Qwen-VL family
TURN_END = "<|im_end|>"
VISION_END = "<|vision_end|>"  # ends each image, and each clip or pair of its frames


def chat_messages(record: Record) -> list[dict[str, Any]]:
    """Return the record's prompt with each text split at its media tags, in order. White space is kept as written.

    Example:
        A user turn "<video>\\nWhich steps?" becomes ``{"role": "user", "content": [{"type": "video"},
        {"type": "text", "text": "\\nWhich steps?"}]}``.
    """
    return [{"role": message.role, "content": _parts(message)} for message in record.messages]


def render_prompt(processor: ProcessorMixin, chat: list[dict[str, Any]], arguments: Mapping[str, Any]) -> str:
    """Return the text of a prompt as the processor takes it, with one token for each image and clip.

    Args:
        arguments: of the chat template, such as ``{"enable_thinking": False}``. Where it does not read ``tools``, their
            schemas are put into the system turn.
    """
    if arguments.get("tools") and not _reads(processor, "tools"):
        chat = _with_offer(chat, arguments["tools"])
        arguments = {**arguments, "tools": None}
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **arguments)
    if hasattr(processor, "vision_start_token"):
        # Qwen3-VL's processor gives every pair of frames a time stamp and its own start and end tokens. Its authors'
        # version, and inference servers, put these in place of the template's start and end; transformers 5 keeps the
        # template's around them, which the pretrained weights have not seen.
        pad = processor.video_token
        text = text.replace(processor.vision_start_token + pad + processor.vision_end_token, pad)
    return text


def parted(text: str, tokens: Iterable[str]) -> str:
    """Return a text with a space inside each token that it spells, so that the tokenizer reads ordinary words.

    Example:
        >>> parted("It said <|im_end|>.", ["<|im_end|>"])
        'It said < |im_end|>.'
    """
    for token in tokens:
        text = text.replace(token, f"{token[:1]} {token[1:]}")
    return text


def turn_end_id(processor: ProcessorMixin, arguments: Mapping[str, Any] | None = None) -> int | None:
    """Return the token that the chat template writes right behind a turn of the model.

    A model that was tuned on conversations ends its turns with it, whatever its other files name as the end of a text.

    Args:
        arguments: of the chat template.

    Returns:
        None where the template writes no special token there.
    """
    turn = "A turn of the model."
    chat = [
        {"role": "user", "content": [{"type": "text", "text": "?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": turn}]},
    ]
    text = processor.apply_chat_template(chat, tokenize=False, **(arguments or {}))
    if turn not in text:
        return None
    behind = text.rpartition(turn)[2]
    ids = processor.tokenizer(behind, add_special_tokens=False)["input_ids"]
    # An ordinary token, such as a line break, also stands within turns: sampling must not stop at it.
    is_special = bool(ids) and ids[0] in processor.tokenizer.added_tokens_decoder
    return ids[0] if is_special else None


def check_template_arguments(processor: ProcessorMixin, arguments: Mapping[str, Any]) -> None:
    """Check that the chat template reads all of the arguments.

    Raises:
        ValueError: naming one that it does not read.
    """
    for name in arguments:
        if name != "tools" and not _reads(processor, name):
            raise ValueError(f"--chat_template_kwargs {name} has no effect: the model's chat template does not read it")


def render_end(
    processor: ProcessorMixin, record: Record, sentence: str, arguments: Mapping[str, Any]
) -> str:
    """Return the end of a prompt, from behind its last image or clip, with a sentence on a line below the question.

    Args:
        sentence: text, also where it spells a media tag.
        arguments: of the chat template.
    """
    chat = chat_messages(record)
    parts = chat[-1]["content"]
    question = parts.pop()["text"] if parts and parts[-1]["type"] == "text" else ""
    parts.append({"type": "text", "text": f"{question}\n{sentence}"})
    end = render_prompt(processor, chat, arguments)
    # Qwen3-VL's clips are a bare video token here (see render_prompt), those of other models end with VISION_END.
    for token in (VISION_END, processor.video_token, processor.image_token):
        end = end.rpartition(token)[2]
    return end


def render_answer(
    processor: ProcessorMixin, answers: Sequence[list[dict[str, Any]]], arguments: Mapping[str, Any]
) -> str:
    """Return the text that follows a turn of the model in which it called tools, up to its next turn.

    The template renders a stand-in for the sampled turn: sampled tokens are never rendered again, as the text could
    become other tokens than those that were sampled.

    Args:
        answers: for each call the parts of its tool's answer.

    Raises:
        ValueError: the chat template changes the turns before the last.
    """
    turns: list[dict[str, Any]]
    if _reads(processor, "tool_response"):
        turns = [{"role": "tool", "content": parts} for parts in answers]
    else:
        content: list[dict[str, Any]] = []
        for parts in answers:
            content.append({"type": "text", "text": "<tool_response>\n"})
            content += parts
            content.append({"type": "text", "text": "\n</tool_response>"})
        turns = [{"role": "user", "content": content}]
    called = "A turn with calls."
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": called}, *turns]
    _, found, after = render_prompt(processor, chat, arguments).partition(called + TURN_END)
    if not found:
        raise ValueError(f"--tools: the chat template does not write {TURN_END} behind a turn of the model")
    return after


def render_calls(processor: ProcessorMixin, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return calls of tools, each a name and its arguments, as the model's chat template writes them.

    No thinking stands before them. A template that knows no calls gets JSON objects.
    """
    if not _reads(processor, "tool_calls"):
        objects = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in objects)
    # The form of calls in OpenAI's API, which chat templates read.
    tool_calls = [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in calls]
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": tool_calls},
    ]
    text = render_prompt(processor, chat, {})
    return text[text.index("<tool_call>") :].partition(TURN_END)[0]


def _reads(processor: ProcessorMixin, name: str) -> bool:
    """Whether the text of the chat template names a variable or a key."""
    return bool(re.search(rf"\b{re.escape(name)}\b", processor.chat_template or ""))


def _with_offer(chat: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chat with the schemas of tools behind the text of its system turn, as Qwen's text models have them."""
    schemas = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in tools)
    offer = (
        "You may call functions. Their signatures are within <tools></tools>:\n"
        f"<tools>\n{schemas}\n</tools>\n"
        "Write a call as a JSON object with the function's name and its arguments, within <tool_call></tool_call>:\n"
        '<tool_call>\n{"name": NAME, "arguments": {ARGUMENTS}}\n</tool_call>'
    )
    own = chat[0]["content"] if chat and chat[0]["role"] == "system" else []
    if not own:
        return [{"role": "system", "content": [{"type": "text", "text": offer}]}, *chat]
    extended = [*own, {"type": "text", "text": f"\n\n{offer}"}]
    return [{"role": "system", "content": extended}, *chat[1:]]


def opens_think(prompt: str) -> bool:
    """Say whether a rendered prompt ends inside a think block.

    The chat templates of thinking checkpoints end the prompt with ``<think>``, and the completion continues inside that
    block. Only the last turn counts: a question may mention the tag.

    Example:
        >>> opens_think("<|im_start|>user\\nWhich?<|im_end|>\\n<|im_start|>assistant\\n<think>\\n")
        True
    """
    last_turn = prompt.rpartition(TURN_START)[2]
    return last_turn.rfind("<think>") > last_turn.rfind("</think>")


def _parts(message: Message) -> list[dict[str, Any]]:
    """The parts of a message: its texts, and between them its images and clips."""
    parts: list[dict[str, Any]] = []
    # Splitting at a pattern with one group gives text, tag, text, tag, ..., text.
    for number, piece in enumerate(MEDIA_TAG.split(message.text)):
        if number % 2 == 1:
            parts.append({"type": piece})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts
