"""Loading: the parts that learn, the places of adapters, and the checkpoints that are refused."""

import json
import shutil
import sys
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from qwenvl.demo.tiny import FAMILIES
from qwenvl.model.loading import (
    FOUR_BIT_BYTES,
    FOUR_BIT_SKIPS,
    MisfitError,
    apply_tuning,
    four_bit_settings,
    load_model,
    load_processor,
    lora_config,
    merged_weights,
    parameter_groups,
    part_of,
    require_four_bit,
    resolve_attention,
    router_note,
    unwrap,
)
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.model.saved_adapter import load_adapter_weights, with_adapter
from qwenvl.model.weight_files import base_of_adapter, has_weights, weights_problem
from qwenvl.rollout.vllm import policy_weights
from qwenvl.train.run.checkpoints import load_weights


@pytest.mark.parametrize("family", FAMILIES)
def test_each_flag_trains_its_part_and_nothing_else(tiny_pair, family):
    model, _ = tiny_pair(family, tie_word_embeddings=False)
    everything = {name for name, _ in model.named_parameters()}
    mergers, visual = ({name for name in everything if word in name} for word in ("merger", ".visual."))
    for part, expected in {"llm": everything - visual, "vision": visual - mergers, "mlp": mergers}.items():
        apply_tuning(model, TuneOptions(**{f"tune_mm_{name}": name == part for name in ("llm", "vision", "mlp")}))
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        assert trained == expected and expected
        assert ("lm_head.weight" in trained) == (part == "llm")
    with pytest.raises(ValueError, match="nothing would learn"):
        apply_tuning(model, TuneOptions(tune_mm_llm=False, tune_mm_vision=False, tune_mm_mlp=False))


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_go_on_the_parts_that_the_tune_flags_name(tiny_pair, family):
    model, _ = tiny_pair(family)
    for flags, parts in (
        (TuneOptions(tune_mm_llm=False, tune_mm_mlp=False), {"llm"}),
        (TuneOptions(tune_mm_llm=False, tune_mm_mlp=False, tune_mm_vision=True), {"vision"}),
        (TuneOptions(), {"llm", "mlp"}),
    ):
        config = lora_config(model, flags, LoraOptions(True, 2, 4))
        assert {part_of(name) for name in (*config.target_modules, *(config.target_parameters or ()))} == parts
    adapted = get_peft_model(model, config)
    assert unwrap(adapted) is model
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained) and {part_of(name) for name in trained} == parts


@pytest.mark.parametrize(
    ("targets", "parts_of_names"),
    [
        (None, {"q_proj", "o_proj", "in_proj_qkv", "experts.gate_up_proj", "shared_expert.down_proj"}),
        (["experts.down_proj"], {"experts.down_proj"}),
        (["q_proj", "experts"], {"self_attn.q_proj", "experts.gate_up_proj", "experts.down_proj"}),
        (["layers.0.linear_attn"], {"in_proj_z", "in_proj_a", "linear_attn.out_proj"}),
    ],
    ids=["default", "experts of one kind", "attention and experts", "one layer"],
)
def test_adapters_go_on_the_layers_that_lora_targets_names(tiny_pair, targets, parts_of_names):
    model, _ = tiny_pair("qwen3_5_moe")
    config = lora_config(model, TuneOptions(), LoraOptions(True, 2, 4, lora_targets=targets))
    names = {*config.target_modules, *(config.target_parameters or ())}
    assert all(any(name.endswith(part) for name in names) for part in parts_of_names)
    if targets is not None:
        assert all(any(f".{target}." in f".{name}." for target in targets) for name in names)
    trained = [name for name, p in get_peft_model(model, config).named_parameters() if p.requires_grad]
    assert len(trained) == 2 * len(names) and all("lora_" in name for name in trained)


def test_names_that_no_layer_bears_and_dropout_of_experts_are_refused(tiny_pair):
    model, _ = tiny_pair("qwen3_5_moe")
    with pytest.raises(ValueError, match=r"--lora_targets qproj: .*expected experts\.down_proj, .*did you mean q_proj"):
        lora_config(model, TuneOptions(tune_mm_mlp=False), LoraOptions(True, 2, 4, lora_targets=["qproj"]))
    with pytest.raises(ValueError, match="cannot be used on experts"):
        lora_config(model, TuneOptions(), LoraOptions(True, 2, 4, lora_dropout=0.1))
    lora_config(model, TuneOptions(), LoraOptions(True, 2, 4, lora_dropout=0.1, lora_targets=["self_attn"]))


def test_the_routers_logits_are_not_collected_and_their_loss_is_named(tiny_pair, random_prompts, tmp_path):
    model, _ = tiny_pair("qwen3_vl_moe")
    assert router_note(tiny_pair("qwen3_vl")[0].config) is None
    model.config.text_config.output_router_logits = True
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, dtype=torch.float32)
    prompts = random_prompts(loaded, ["t"])
    assert loaded(input_ids=prompts.input_ids).router_logits is None
    assert "router_aux_loss_coef 0.001" in router_note(loaded.config)


def test_learning_rates_apply_to_their_part_alone(tiny_pair):
    model, _ = tiny_pair()
    apply_tuning(model, TuneOptions(tune_mm_vision=True))
    decayed = {name for name, p in model.named_parameters() if p.dim() > 1}
    groups = parameter_groups(model, weight_decay=0.1, decayed=decayed, learning_rates={"mlp": 3e-4})
    names = {id(p): name for name, p in model.named_parameters()}
    rates = {names[id(p)]: group.get("lr") for group in groups for p in group["params"]}
    assert set(rates) == {name for name, _ in model.named_parameters()}
    assert all((rate == 3e-4) == (part_of(name) == "mlp") for name, rate in rates.items())
    decays = {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
    assert all((decay == 0.1) == (name in decayed) for name, decay in decays.items())


@pytest.mark.parametrize(
    ("change", "misfit"),
    [
        (lambda name, x: {} if name == "model.norm.weight" else {name: x}, "language_model.norm.weight is missing;"),
        (lambda name, x: {} if name.startswith("model.") else {name: x}, "embed_tokens.weight is missing, .* more;"),
        (lambda name, x: {name: x[:3] if "ln_q" in name else x}, r"merger.ln_q.weight is \(3,\), expected \(32,\);"),
    ],
    ids=["one missing", "language model missing", "other shape"],
)
def test_weights_that_files_lack_are_not_random(tiny_checkpoint, tiny_pair, tmp_path, change, misfit):
    folder = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint(), folder)
    file = folder / "model.safetensors"
    changed: dict[str, torch.Tensor] = {}
    for name, value in load_file(file).items():
        changed |= change(name, value.clone())
    save_file(changed, file, metadata={"format": "pt"})
    with pytest.raises(MisfitError, match=f"^{folder}: .*do not fit the model: .*{misfit}"):
        load_model(folder)
    with pytest.raises(MisfitError, match=misfit):
        load_weights(tiny_pair()[0], folder)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("qwen2_5_omni", r"\(it also hears and speaks"),
        ("qwen4_exp", r"\(its n-gram embedding table"),
        ("qwen2", f": expected one of {', '.join(FAMILIES)}"),
    ],
)
def test_an_unsupported_model_type_is_refused_before_transformers_reads_it(tmp_path, monkeypatch, name, reason):
    """transformers would say that a newer one of its versions may know them."""
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", Mock(side_effect=ValueError("update transformers")))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    with pytest.raises(ValueError, match=f"'{name}' is not supported.*{reason}"):
        load_model(tmp_path)


def test_experts_that_zero3_would_turn_twice_are_refused(tiny_checkpoint, monkeypatch):
    """As found with two processes: the shapes that tell which way a matrix lies are empty there."""
    error = RuntimeError("size mismatch for mlp.experts.gate_up_proj")
    monkeypatch.setattr(AutoModelForImageTextToText, "from_pretrained", Mock(side_effect=error))
    with pytest.raises(MisfitError, match=r"size mismatch for mlp.*--fsdp or ZeRO-2"):
        load_model(tiny_checkpoint("qwen3_vl_moe"))


def test_an_adapter_alone_names_its_model(tiny_pair, tmp_path):
    model, _ = tiny_pair()
    get_peft_model(model, lora_config(model, TuneOptions(), LoraOptions(lora_enable=True, lora_r=2))).save_pretrained(
        tmp_path
    )
    base = base_of_adapter(tmp_path)
    assert base == model.name_or_path and base_of_adapter(base) is None
    with pytest.raises(ValueError, match=f"--model_name_or_path {base} --lora_enable --start_from_weights {tmp_path}"):
        load_model(tmp_path)
    file = tmp_path / "adapter_config.json"
    for text, problem in (
        ('{"r": 2}', "expected the model that the adapter belongs to in base_model_name_or_path, got none"),
        ('{"base_model_name_or_path": 5}', "in base_model_name_or_path, got 5"),
        ("[1]", "expected an object, got list"),
        ("{", "not JSON"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=rf"adapter_config\.json: .*{problem}"):
            base_of_adapter(tmp_path)


@pytest.mark.parametrize(
    ("device", "capability", "half", "found"),
    [
        ("cuda", (9, 0), True, "flash_attention_2"),
        ("cuda", (9, 0), False, "needs products in half precision: set --bf16 True"),
        ("cuda", (7, 5), True, r"needs a device of compute capability 8\.0 or more, got 7\.5"),
        ("cpu", None, True, "needs a CUDA device"),
    ],
)
def test_flash_attention_is_taken_only_where_it_runs(device, capability, half, found, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: capability)
    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: True)
    runs, where = "needs" not in found, torch.device(device)
    assert resolve_attention("auto", where, half) == (found if runs else "sdpa")
    with pytest.raises(ValueError, match=found) if not runs else nullcontext():
        assert resolve_attention("flash_attention_2", where, half) == found
    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: False)
    assert resolve_attention("auto", where, half) == "sdpa" and resolve_attention("eager", where, half) == "eager"


def without(name):
    """Deletes files of a folder."""
    return lambda folder: [file.unlink() for file in folder.glob(name)]


def template(old, new):
    """Replaces words in a chat template."""

    def change(folder):
        file = folder / "chat_template.jinja"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without("tokenizer*"), r"(fails: |has a tokenizer without <\|image_pad\|> and)"),
        (without("chat_template.jinja"), "fails: ValueError: .*chat template"),
        (template("{{ part['text'] }}", ""), "leaves Which steps\\? out of a prompt"),
        (template("<|video_pad|>", ""), r"leaves <\|video_pad\|> out"),
        (template("add_generation_prompt", "false"), "writes no assistant header: add_generation_prompt"),
        (template("{%- endfor -%}", ""), "fails: TemplateSyntaxError: .*"),
    ],
    ids=range(6),
)
def test_a_processor_that_cannot_write_a_prompt_is_refused(tiny_checkpoint, tmp_path, change, problem):
    assert load_processor(tiny_checkpoint()).chat_template
    folder = shutil.copytree(tiny_checkpoint(), tmp_path / "checkpoint")
    change(folder)
    with pytest.raises((ValueError, OSError), match=rf"^{folder}: its processor {problem}[^\n]*; copy the tokenizer's"):
        load_processor(folder)
    without("processor_config.json")(folder)
    with pytest.raises((ValueError, OSError), match="processor"):
        load_processor(folder)


# ---- weight files


def test_files_of_weights_that_were_cut_short_are_refused(tiny_checkpoint, tmp_path):
    assert has_weights(tiny_checkpoint()) and weights_problem(tiny_checkpoint()) is None
    assert not has_weights(tmp_path) and weights_problem(tmp_path) is None
    folder = shutil.copytree(tiny_checkpoint(), tmp_path / "cut")
    weights = folder / "model.safetensors"
    for kept in (500_000, 100, 0):
        weights.write_bytes(weights.read_bytes()[:kept])
        with pytest.raises(ValueError, match=rf"^{weights}: cut short or damaged"):
            load_model(folder)


@pytest.mark.parametrize("load", [load_model, load_processor])
def test_a_path_without_a_checkpoint_is_refused_with_the_reason(load, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for path in (str(tmp_path / "none"), "../none", "runs/sop/checkpoint-3", "Qwen3-VL-4B"):
        with pytest.raises(FileNotFoundError, match=rf"^{path}: no such folder; expected"):
            load(path)
    with pytest.raises(FileNotFoundError, match="a file; expected the folder of a model"):
        load(__file__)
    with pytest.raises(OSError, match=r"^org/none: .*not in the cache, and HF_HUB_OFFLINE"):
        load("org/none")
    with pytest.raises(FileNotFoundError, match=rf"^{tmp_path}: no config.json in it"):
        load_model(tmp_path)


# ---- weights in 4 bits


def test_weights_in_4_bits_are_refused_on_a_cpu_and_for_experts(monkeypatch, tiny_checkpoint, tiny_pair):
    with pytest.raises(ValueError, match="--load_in_4bit needs a CUDA device"):
        require_four_bit("cpu")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ImportError, match=r"qwenvl\[qlora\]"):
        require_four_bit("cuda:0")
    with pytest.raises(ValueError, match=r"--load_in_4bit .*mixture of experts"):
        load_model(tiny_checkpoint("qwen3_vl_moe"), quantization=Mock())  # before weights are read
    with pytest.raises(ValueError, match=r"--load_in_4bit .*mixture of experts"):  # in a plan
        lora_config(tiny_pair("qwen3_5_moe")[0], TuneOptions(), LoraOptions(lora_enable=True, load_in_4bit=True))


def test_layers_of_the_language_model_are_packed_and_adapters_learn(tiny_checkpoint):
    pytest.importorskip("bitsandbytes", reason="not among the packages of the tests: it is for GPUs")
    settings = four_bit_settings(torch.float32)
    assert settings.llm_int8_skip_modules == FOUR_BIT_SKIPS
    model = load_model(tiny_checkpoint(hidden_size=128), dtype=torch.float32, quantization=settings)
    packed = {name for name, each in model.named_parameters() if each.dtype == torch.uint8}
    assert packed and all("language_model.layers." in name for name in packed)
    first = model.model.language_model.layers[0].mlp.up_proj.weight
    assert first.numel() == 128 * 256 / 2 and 0.5 < FOUR_BIT_BYTES < 0.52
    adapted = get_peft_model(model, lora_config(model, TuneOptions(tune_mm_mlp=False), LoraOptions(True, 4, 8)))
    ids = torch.arange(20, 40)[None]
    adapted(input_ids=ids, labels=ids).loss.backward()
    learned = [name for name, each in adapted.named_parameters() if each.grad is not None and each.grad.abs().max() > 0]
    assert learned and all(".lora_B" in name for name in learned)  # the other half has gradients of 0 at first


# ---- adapters that are loaded


@pytest.fixture
def saved_adapter(tiny_pair, tmp_path):
    """A folder with a random adapter of all q_proj of the language model, and a fresh copy of the model under it."""
    model, _ = tiny_pair()
    config = LoraConfig(r=2, target_modules=r".*language_model.*\.q_proj", init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", lambda: load_model(model.name_or_path)


def test_an_adapter_is_loaded_whole(saved_adapter):
    folder, base = saved_adapter
    weights = load_file(folder / "adapter_model.safetensors")
    adapted = with_adapter(base(), folder)
    assert {name: value.tolist() for name, value in get_peft_model_state_dict(adapted).items()} == {
        name: value.tolist() for name, value in weights.items()
    }
    assert not any(parameter.requires_grad for parameter in adapted.parameters()) and not adapted.training


def first_layer_alone(weights):
    return {name: value for name, value in weights.items() if "layers.0." in name}


def without_prefix(weights):
    return {name.removeprefix("base_model.model."): value for name, value in weights.items()}


def with_one_more(weights):
    return {**weights, "base_model.model.head.lora_A.weight": torch.zeros(2, 4)}


@pytest.mark.parametrize("change", [first_layer_alone, without_prefix, with_one_more])
@pytest.mark.parametrize("trainable", [False, True], ids=["read", "trained on"])
def test_an_adapter_whose_weights_have_other_names_is_refused(change, trainable, saved_adapter):
    folder, base = saved_adapter
    file = folder / "adapter_model.safetensors"
    whole = load_file(file)
    changed = change(whole)
    adapted = with_adapter(base(), folder)
    save_file(changed, file)
    missing, unknown = sorted(whole.keys() - changed.keys()), sorted(changed.keys() - whole.keys())
    with pytest.raises(MisfitError) as error:
        load_adapter_weights(adapted, folder, trainable=True) if trainable else with_adapter(base(), folder)
    told = str(error.value)
    assert "\n" not in told
    expected = []
    if missing:
        expected.append(f"{len(missing)} of {len(whole)} weights of the adapter are missing, such as {missing[0]}")
    if unknown:
        expected.append(f"{len(unknown)} of {len(changed)} weights in the file are unknown, such as {unknown[0]}")
    assert told.startswith(f"{file}: {'; '.join(expected)}; ")


def test_an_adapter_with_a_module_of_its_own_must_have_it(tiny_pair, tmp_path):
    model, _ = tiny_pair()
    config = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["merger"])
    get_peft_model(model, config).save_pretrained(tmp_path)
    with_adapter(load_model(model.name_or_path), tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    save_file({name: value for name, value in load_file(file).items() if "merger" not in name}, file)
    with pytest.raises(MisfitError, match=r"adapter_model\.safetensors: .*merger.* is missing"):
        with_adapter(load_model(model.name_or_path), tmp_path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"peft_type": "NEWER"}, "PEFT can't make this adapter: KeyError: 'NEWER'"),
        ({"peft_type": ["LORA"]}, "PEFT can't make this adapter: TypeError"),
        ({"r": "2"}, "PEFT can't make this adapter: TypeError"),
        ({"target_modules": ["none"]}, "PEFT can't make this adapter: "),
        ({"target_modules": r".*language_model.*layers\.0.*\.q_proj"}, "weights in the file are unknown"),
        ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 2}, "PROMPT_TUNING adds tokens to prompts"),
    ],
    ids=str,
)
def test_settings_of_an_adapter_that_can_not_be_used_are_told_in_a_line(changes, problem, saved_adapter):
    folder, base = saved_adapter
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ValueError) as error:
        with_adapter(base(), folder)
    assert problem in str(error.value) and str(folder) in str(error.value) and "\n" not in str(error.value)


# ---- adapters merged into weights (tests/train/test_merge.py compares logits)

ATTENTION = r".*language_model.*\.(q_proj|v_proj)"


def adapted(model, **settings):
    """The model with an adapter of random weights, none of them 0."""
    torch.manual_seed(1)
    policy = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, init_lora_weights=False, **settings))
    return policy.eval()


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True},
        {"modules_to_save": ["merger"]},
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["embed_tokens"]},
        {"lora_bias": True},
        {"alora_invocation_tokens": [5, 6]},
    ],
    ids=str,
)
def test_adapters_of_other_kinds_are_refused(tiny_pair, settings):
    with pytest.raises(ValueError, match="only LoRA adapters"):
        merged_weights(adapted(tiny_pair()[0], **{"target_modules": ATTENTION, **settings}))


def test_merged_weights_are_rounded_once_to_the_type_of_each_weight(tiny_pair):
    model = tiny_pair(initializer_range=0.1)[0].to(torch.bfloat16)
    policy = adapted(model, target_modules=ATTENTION)
    layer = unwrap(policy).model.language_model.layers[0].self_attn.q_proj
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    exact = layer.base_layer.weight.float() + 16 / 4 * up.float() @ down.float()
    whole = merged_weights(policy)
    assert {weight.dtype for weight in whole.values()} == {torch.bfloat16}
    weight = whole["model.language_model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(weight, exact.to(torch.bfloat16))
    next(p for name, p in policy.named_parameters() if "lora_A" in name).data.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN or infinite"):
        merged_weights(policy)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl_moe"])
def test_adapters_of_linear_attention_and_of_experts_are_folded_in(tiny_pair, family):
    model, _ = tiny_pair(family)
    before = {name: value.clone() for name, value in model.to(torch.bfloat16).state_dict().items()}
    config = lora_config(model, TuneOptions(), LoraOptions(True, 2, 4))
    config.init_lora_weights = False
    policy = get_peft_model(model, config)
    learned = {name: value.clone() for name, value in policy.state_dict().items()}
    ours = merged_weights(policy)
    for name, value in policy_weights(policy, torch.bfloat16):  # what vLLM servers get
        assert torch.equal(value, ours[name]), name
    assert all(torch.equal(value, learned[name]) for name, value in policy.state_dict().items()), "the policy stays"
    changed = {name for name, value in ours.items() if not torch.equal(value, before[name])}
    assert changed == {*(config.target_parameters or ()), *(f"{name}.weight" for name in config.target_modules)}
    whole = policy.merge_and_unload().state_dict()  # of peft, in bfloat16
    torch.testing.assert_close(ours, dict(whole), rtol=0.01, atol=0.01)
