"""What layers keep for their backward pass, against what autograd keeps of real ones."""

import pytest
import torch

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model.families import FAMILIES
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import apply_tuning, lora_config, unwrap
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.model.sharing import shared_prefix
from qwenvl.plan.activations import layer_bytes
from qwenvl.plan.job import Job, Precision
from qwenvl.plan.shapes import Shapes

TOKENS, GROUP, LENGTH = 200, 3, 20


def kept_by_layers(model: torch.nn.Module, rounded: bool) -> list[int]:
    """Bytes of the tensors that autograd keeps in each layer of a forward, parameters and their copies left out."""
    bare = unwrap(model)
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    numbers = {each.numel() for each in bare.model.language_model.layers.parameters()}
    known, kept, now = {}, {}, [-1]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        copied = rounded and tensor.dtype == torch.bfloat16 and tensor.numel() in numbers
        if storage.data_ptr() not in weights | known.keys() and not copied:
            known[storage.data_ptr()] = storage  # alive, so that no other takes its place
            kept[now[0]] = kept.get(now[0], 0) + storage.nbytes()
        return tensor

    for number, layer in enumerate(bare.model.language_model.layers):
        layer.register_forward_pre_hook(lambda module, args, number=number: now.__setitem__(0, number))
        layer.register_forward_hook(lambda module, args, out: now.__setitem__(0, -1))
    prompts = PromptInputs.of_text(torch.randint(0, 250, (1, TOKENS)))
    ids = torch.randint(0, 250, (GROUP, LENGTH))
    cast = torch.autocast("cpu", torch.bfloat16, enabled=rounded)
    with cast, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        shared_prefix.completion_logprobs(
            model.train(), prompts, ids, torch.ones_like(ids, dtype=torch.bool), temperature=1.0, logit_chunk_tokens=512
        )
    return [kept[number] for number in range(len(bare.model.language_model.layers))]


@pytest.mark.parametrize(
    ("family", "how"),
    [
        *((family, "full") for family in FAMILIES),
        *(("qwen2_5_vl", how) for how in ("lora", "bfloat16", "lora in bfloat16")),
        ("qwen3_5", "lora"),
    ],
)
def test_layers_keep_what_is_counted(family, how):
    rounded, adapted = "bfloat16" in how, "lora" in how
    model = make_model(family, make_processor(family), hidden_size=128, num_layers=4)
    apply_tuning(model, TuneOptions())
    if adapted:
        from peft import get_peft_model

        model = model.to(torch.bfloat16) if rounded else model
        model = get_peft_model(model, lora_config(model, TuneOptions(tune_mm_mlp=False), LoraOptions(True, 4, 8)))
    shapes = Shapes.of(unwrap(model).config)
    half = Precision(2 if adapted else 4, 2)
    job = Job(
        tokens=TOKENS,
        patches=0,
        group=GROUP,
        length=LENGTH,
        rank=4 if adapted else 0,
        precision=half if rounded else Precision(),
    )
    kept = kept_by_layers(model, rounded)
    for number in range(1, len(kept)):  # the first one's input is no activation where nothing before it learns
        counted = layer_bytes(shapes.text, shapes.text.layers[number], job)
        assert counted == pytest.approx(kept[number], rel=0.06), (number, shapes.text.layers[number])
