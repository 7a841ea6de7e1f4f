"""The settings that shaped the prompts of a run, kept in a file beside its weights. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.records.framing import Framing
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.tool_options import BUILT_IN, ToolOptions
from qwenvl.option import Some, all_options

SETTINGS_FILE = "prompt_settings.json"


@dataclass(frozen=True)
class PromptSettings:
    """All settings that shape the prompts of a run.

    Attributes:
        frames: how densely clips are sampled.
        prompts: bounds on pixels and length, and the arguments of the chat template.
        base_model: the model that the run started from.
        system: the text of the system turn of every prompt, or None where records have their own or none.
        prompt_template: a text with ``{prompt}`` in it, which the last user turn takes the place of.
        framing: the further texts around the questions of the run's records.
        tools: that completions may call, which a system turn names. None: an earlier version of this library did not
            write them.
    """

    frames: FrameOptions
    prompts: PromptOptions
    base_model: str = ""
    system: str | None = None
    prompt_template: str | None = None
    framing: Framing = field(default_factory=Framing)
    tools: ToolOptions | None = None

    @classmethod
    def of(cls, flags: Any, dataset: Any, base_model: str) -> PromptSettings:
        """Take the settings of a run from its flags, and the frames' from its data set, which need not have the flags'.

        The arguments of the chat template are the effective ones, so that a template of other defaults changes nothing.

        Args:
            dataset: to train on. None, or one of another library, leaves the frames to the flags.
        """
        read = ReadOptions.of(flags)
        frames = FrameOptions.of(getattr(dataset, "options", flags))
        ruler = getattr(dataset, "ruler", None)
        prompts = PromptOptions.of(flags)
        if ruler is not None:
            effective = {name: value for name, value in ruler.effective_arguments.items() if value is not None}
            prompts = replace(prompts, chat_template_kwargs=effective or None)
        framing = Framing.of(getattr(dataset, "records", ()), read)
        return cls(
            frames=frames,
            prompts=prompts,
            base_model=base_model,
            system=read.system,
            prompt_template=read.prompt_template,
            framing=framing,
            tools=ToolOptions.of(flags),
        )

    @classmethod
    def load(cls, folder: str | Path) -> PromptSettings:
        """Read the settings that ``save`` wrote.

        Raises:
            FileNotFoundError: the folder does not hold them.
            ValueError: the file was changed, or another version wrote it. What is read here becomes flags of commands.
        """
        path = Path(folder) / SETTINGS_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{path}: not there; expected a folder that training with this library wrote")
        try:
            return cls._of_json(json.loads(path.read_text("utf-8")))
        except ValueError as error:  # JSON that is none, or bytes that are no text, too
            problem = "; ".join(str(error).splitlines())
            advice = "copy the file again from the run, or use the version of this library that wrote it"
            raise ValueError(f"{path}: {problem}; {advice}") from None

    @classmethod
    def _of_json(cls, saved: Any) -> PromptSettings:
        """The settings from the content of the file.

        Raises:
            ValueError: naming the first entry that is missing, unknown or of another type.
        """
        _check_object("the file", saved, [each.name for each in fields(cls)], needed=("frames", "prompts"))
        for name in ("base_model", "system", "prompt_template"):
            if not isinstance(saved.get(name), str | None):
                raise ValueError(f"{name} must be a text or null, got {type(saved[name]).__name__}")
        frames = _options_of(FrameOptions, "frames", saved["frames"])
        prompts = _options_of(PromptOptions, "prompts", saved["prompts"])
        framing = _framing_of(saved.get("framing") or {})  # settings of an earlier version have none
        tools = saved.get("tools")
        if tools is not None:
            tools = _options_of(ToolOptions, "tools", tools)
        return cls(**saved | {"frames": frames, "prompts": prompts, "framing": framing, "tools": tools})

    @classmethod
    def beside(cls, folder: str | Path) -> PromptSettings | None:
        """The settings beside the weights of a folder. None where there are none, or where it is no folder."""
        return cls.load(folder) if (Path(folder) / SETTINGS_FILE).is_file() else None

    def save(self, folder: str | Path) -> None:
        """Write the settings to ``folder``, beside the processor."""
        (Path(folder) / SETTINGS_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @property
    def frames_per_second(self) -> float:
        """Frames taken per second of a clip, where the bounds on their number allow it."""
        return self.frames.video_fps or 1 / self.frames.base_interval

    def otherwise(self, here: PromptSettings) -> list[tuple[str, Any, Any]]:
        """The settings that differ here: name, value in training, value here.

        The flags about prompts that are too long do not count: they choose prompts and frames, and shape none. Nor do
        arguments of the chat template that nobody sets here: the template that was saved has those of training as its
        defaults.
        """
        before = self._by_name()
        after = here._by_name()
        skipped = {"max_prompt_length", "on_long_prompt", "fit_frames"}
        if self.tools is None or here.tools is None:
            skipped.update(each.name for each in all_options(ToolOptions))
        if here.prompts.chat_template_kwargs is None:
            skipped.add("chat_template_kwargs")
        names = [name for name in before if name not in skipped]
        return [(name, before[name], after[name]) for name in names if before[name] != after[name]]

    def flags_of_tools(self) -> dict[str, Any]:
        """The options of tools by name, where all of them are this library's own. Empty where there are none.

        A tool of a file is code, and a file of settings beside weights of somebody else must not name what is run.
        """
        if self.tools is None or self.tools_of_files:
            return {}
        return asdict(self.tools)

    @property
    def tools_of_files(self) -> list[str]:
        """The tools of training that are code of a file."""
        named = [] if self.tools is None else self.tools.tools or []
        return [name for name in named if name not in BUILT_IN]

    def _by_name(self) -> dict[str, Any]:
        """The settings by the names of their flags."""
        own = {"system": self.system, "prompt_template": self.prompt_template}
        arguments = {"chat_template_kwargs": self.prompts.template_arguments}
        tools = asdict(self.tools or ToolOptions())
        return asdict(self.frames) | asdict(self.prompts) | own | arguments | tools


def _check_object(where: str, value: Any, known: Sequence[str], needed: Sequence[str] = ()) -> None:
    """Raise ValueError where a value is no object, has an unknown entry, or lacks one that is needed."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, got {type(value).__name__}")
    missing = [name for name in needed if name not in value]
    if missing:
        raise ValueError(f"{where}: {missing[0]} is missing")
    unknown = [name for name in value if name not in known]
    if unknown:
        raise ValueError(f"{where}: unknown entry {unknown[0]!r}; expected {', '.join(known)}")


def _options_of(kind: type[Some], where: str, values: Any) -> Some:
    """Options from an object of their names. Earlier versions had fewer of them.

    Raises:
        ValueError: an unknown name, or a value that does not fit.
    """
    _check_object(where, values, [each.name for each in all_options(kind)])
    try:
        return kind(**values)
    except ValueError as error:  # which names flags
        raise ValueError(f"{where}: {str(error).replace('--', '')}") from None


def _framing_of(values: Any) -> Framing:
    """A framing from an object of its fields.

    Raises:
        ValueError: an unknown name, or a value of another type.
    """
    _check_object("framing", values, [each.name for each in fields(Framing)])
    for name, value in values.items():
        if name == "kinds":
            if not isinstance(value, list) or not all(isinstance(kind, str) for kind in value):
                raise ValueError(f"framing: kinds must be a list of texts, got {json.dumps(value)}")
        elif not isinstance(value, str) and not (name == "system" and value is None):
            raise ValueError(f"framing: {name} must be a text, got {json.dumps(value)}")
    return Framing(**values | {"kinds": tuple(values.get("kinds", ()))})


def trained_otherwise(model: str | Path, flags: Any) -> list[str]:
    """A sentence for each setting of prompts that a model was trained with and that some flags change.

    Args:
        model: a folder, or the name of a model, of which nothing is known here.
        flags: anything with the attributes of frames, prompts and reading.
    """
    saved = PromptSettings.beside(model)
    if saved is None:
        return []
    return [
        f"{model} was trained with --{name} {as_said(there)}, and here it is {as_said(here)}"
        for name, there, here in saved.otherwise(PromptSettings.of(flags, None, ""))
    ]


def as_said(value: Any) -> Any:
    """A setting as a sentence writes it, a list as the words of a flag."""
    if value is None:
        return "unset"
    return " ".join(map(str, value)) if isinstance(value, list) else value
