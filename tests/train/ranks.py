"""A training run for several processes, which ``test_distributed.py`` forks from one that has imported this.

Completions are drawn from the prompt alone, whatever the process and batch it stands in, so that runs which divide the
same prompts differently among processes can be compared weight by weight.
"""

import json
import math
import os
import signal
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from copying_engine import CopyingEngine
from every_loss import run_every_loss, with_engine
from every_target import run_every_target, warmup_args
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerCallback

from qwenvl import GRPOTrainer
from qwenvl.commands.evaluate import main as evaluate_command
from qwenvl.commands.label import main as label_command
from qwenvl.commands.train import main as train_command
from qwenvl.config.command_line import parse_args
from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig
from qwenvl.model import inputs as model_inputs
from qwenvl.model import vision_tower as tower
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import completion_likelihood
from qwenvl.rollout.engine import completion_mask
from qwenvl.rollout.local import LocalEngine, SharedPrefixEngine
from qwenvl.rollout.options import EngineOptions
from qwenvl.rollout.turns import sample_turns
from qwenvl.step import kernels
from qwenvl.train.run import launch
from qwenvl.train.run.checkpoints import find_checkpoint
from qwenvl.train.warmup.trainer import WarmupTrainer
from qwenvl.types import RolloutBatch

LOOK = '<tool_call>{"name": "look", "arguments": {"start": 0.2, "end": 0.9}}</tool_call><|im_end|>'


class EngineByPrompt(LocalEngine):
    """Random tokens, seeded by the prompt's tokens; of different lengths. Entropies are random too.

    With tools the second completion of each prompt looks at its clip and then says what the first began with.
    """

    def draw(self, model, prompts, group_size, params, seed, conversations=None):
        if conversations is not None:
            first = replace(self.draw(model, prompts, group_size, params, seed), entropies=None)
            call = self.tokenizer(LOOK)["input_ids"]
            first.completion_ids[1::group_size, : len(call)] = torch.tensor(call)
            first.completion_mask[1::group_size] = torch.arange(params.max_new_tokens) < len(call)
            first.finish_reasons = ["stop" if n % group_size < 2 else "length" for n in range(len(first.texts))]
            again = lambda rows, completions, most: replace(
                first,
                completion_ids=first.completion_ids[[row // group_size * group_size for row in rows], :2],
                completion_mask=first.completion_mask[[row // group_size * group_size for row in rows], :2],
                finish_reasons=["length"] * len(rows),
            )
            return sample_turns(first, prompts, params, conversations, again, self.tokenizer)
        rows, entropies = [], []
        for ids, mask in zip(prompts.input_ids, prompts.attention_mask, strict=True):
            generator = torch.Generator().manual_seed(zlib.crc32(ids[mask.bool()].numpy().tobytes()))
            tokens = torch.randint(0, 250, (group_size, params.max_new_tokens), generator=generator)
            tokens[0, 2:] = self.end_ids[0]
            rows.append(tokens)
            entropies.append(torch.rand(tokens.shape, generator=generator))
        ids = torch.cat(rows)
        texts = ["".join(chr(97 + int(t) % 26) for t in row) for row in ids]
        mask = completion_mask(ids == self.end_ids[0])
        reasons = ["stop" if n % group_size == 0 else "length" for n in range(len(ids))]
        return RolloutBatch(ids, mask, texts, reasons, entropies=torch.cat(entropies))


class EngineByPromptWithLogprobs(EngineByPrompt):
    """Its tokens, with the log-probs that the model gives them."""

    def draw(self, model, prompts, group_size, params, seed, conversations=None):
        rollout = super().draw(model, prompts, group_size, params, seed)
        ids, mask = rollout.completion_ids, rollout.completion_mask
        with torch.no_grad():
            given = completion_likelihood(
                model, prompts, ids, mask, temperature=params.temperature, logit_chunk_tokens=999
            )
        return replace(rollout, logprobs=given.logprobs)


class EngineThatStopsApart(SharedPrefixEngine):
    """The engine of the run, made to end at different times: process 0 writes to the limit, process 1 to a quarter."""

    def __init__(self, tokenizer, model, process, token_budget=None):
        super().__init__(tokenizer, model, token_budget=token_budget)
        self.process = process
        if process == 0:  # nothing ends a completion before the limit
            self.vision_ids = [*self.vision_ids, *self.end_ids]

    def draw(self, model, prompts, group_size, params, seed, conversations=None):
        changed = {"stop_strings": ()} if self.process == 0 else {"max_new_tokens": params.max_new_tokens // 4}
        return super().draw(model, prompts, group_size, replace(params, **changed), seed)


class WeightsThatAreHere:
    """Counts, whenever a module runs without gradient, the numbers of the weights that this process has then."""

    def __init__(self, model):
        self.model, self.most = model, 0
        for module in model.modules():
            module.register_forward_pre_hook(self.look)

    def look(self, module, args):
        if not torch.is_grad_enabled():
            # FSDP's are DTensors, of which a process has a part.
            here = [getattr(each, "_local_tensor", each.data) for each in self.model.parameters()]
            self.most = max(self.most, sum(each.numel() for each in here))


class NanInStepTwo:
    """The objective of the run, whose loss is NaN in the second step."""

    def __init__(self, trainer):
        self.trainer, self.objective = trainer, trainer.objective
        self.entropy_coef = trainer.objective.entropy_coef  # the trainer reads it

    def __call__(self, inputs, counts):
        output = self.objective(inputs, counts)
        if self.trainer.state.global_step == 1:
            output.loss = output.loss + math.nan
            output.metrics["loss/policy"] = math.nan
        return output


def vowels(completions, **columns):
    """A reward that differs within a group."""
    return [sum(letter in "aeiou" for letter in text) / 6 for text in completions]


def digits(completions, **columns):
    """A reward that differs within a group of numbers."""
    return [sum(letter in "13579" for letter in text) / len(text) for text in completions]


def alike(completions, id, **columns):
    """A reward that differs within the groups of records whose id ends with an even digit, and is 1 for the others."""
    return [float(n % 3 == 0) if int(each[-1]) % 2 == 0 else 1.0 for n, each in enumerate(id)]


class KilledAfterStepOne(TrainerCallback):
    """Ends this process as a kill of the kernel would, after step 1 and its checkpoint."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class SignalInStepOne(TrainerCallback):
    """Tells this process to end, while it is in its first step."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:
            os.kill(os.getpid(), signal.SIGUSR1)


def start_deepspeed_on_a_cpu() -> None:
    """Start DeepSpeed as it starts by itself on GPUs; on a CPU it would compile an extension first."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)


def start_fsdp_on_a_cpu(args: GRPOConfig) -> None:
    """Accelerate turns FSDP on where the processes have GPUs; all that it then does works on CPUs."""
    assert args.device.type == "cpu"  # asked for before the rest: it makes the state anew
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def begin(environment: dict[str, str], log: str) -> None:
    """Prepare this process as torchrun would have, with its output going into a file."""
    with open(log, "w") as printed:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(printed.fileno(), stream.fileno())
    os.environ.update(environment)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    # A shell that started the tests in the background, or nohup, has them ignore these.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def evaluate(environment: dict[str, str], log: str, words: list[str]) -> None:
    """One process of ``qwenvl evaluate``."""
    begin(environment, log)
    sys.exit(evaluate_command(words))


def label(environment: dict[str, str], log: str, words: list[str]) -> None:
    """One process of ``qwenvl label``."""
    begin(environment, log)
    sys.exit(label_command(words))


def command(environment: dict[str, str], log: str, words: list[str]) -> None:
    """One process of ``qwenvl train``."""
    begin(environment, log)
    train_command(words)


def torchrun(log: str, words: list[str]) -> None:
    """The process that starts others."""
    begin({}, log)
    launch.main(words)


def run_ahead(
    environment: dict[str, str],
    log: str,
    checkpoint: str,
    data: str,
    output: str,
    flags: list[str],
    *,
    killed: bool = False,
) -> None:
    """One process of a run whose engine has weights of its own. ``killed``: after its first step."""
    begin(environment, log)
    EngineOptions.engine_has_own_weights = True
    kernels.server_engine = by_prompt_with_own_weights
    args = parse_args([f"--model_name_or_path={checkpoint}", f"--dataset_use={data}", f"--output_dir={output}", *flags])
    trainer = GRPOTrainer(args=args, reward_funcs=[vowels])
    if killed:
        trainer.add_callback(KilledAfterStepOne())
    trainer.train()
    trainer.save_model()
    trainer.accelerator.end_training()


def warm_up(args: WarmupConfig) -> None:
    """Train on targets and save the model."""
    trainer = WarmupTrainer(args=args)
    trainer.train()
    assert isinstance(trainer.model, FSDPModule) == bool(args.fsdp)
    trainer.save_model()
    trainer.accelerator.end_training()


def by_prompt_with_own_weights(args, policy, local):
    """An engine that samples by the prompt, with a copy of the weights."""
    return CopyingEngine(EngineByPromptWithLogprobs(local.tokenizer, unwrap(policy)))


def run(
    environment: dict[str, str],
    log: str,
    checkpoint: str,
    data: str,
    output: str,
    flags: list[str],
    *,
    trains: str = "rewards",
    engine: str | None = None,
    reward: str = "vowels",
    media_wait: bool = False,
    watches_weights: bool = False,
    fsdp_starts: bool = True,
    nan_on_1: bool = False,
    signal_on_1: bool = False,
) -> None:
    """One process: trains, and lets rank 0 save what came of it.

    Args:
        environment: what torchrun would set.
        log: a file for what it prints.
        trains: ``rewards``, ``targets`` (a warm-up), or the runs of ``every_loss`` and ``every_target``.
        engine: ``by_prompt`` or ``stops_apart``, in place of that of the run.
        reward: the name of a reward function of this file.
        media_wait: media of every micro-batch wait in the memory of the CPU.
        watches_weights: write down how many weights are here at a time while completions are sampled.
        fsdp_starts: start FSDP, which on a CPU does not start by itself.
        nan_on_1: the second loss of process 1 is NaN.
        signal_on_1: process 1 gets a signal in its first step.
    """
    begin(environment, log)
    if any(flag.startswith("--deepspeed") for flag in flags):
        start_deepspeed_on_a_cpu()
    flags = [f"--model_name_or_path={checkpoint}", f"--dataset_use={data}", f"--output_dir={output}", *flags]
    if media_wait:
        model_inputs.LARGE = 0
    if trains == "every_target":
        return run_every_target(flags)
    args = warmup_args(flags) if trains == "targets" else parse_args(flags)
    if args.fsdp and fsdp_starts:
        start_fsdp_on_a_cpu(args)
    if trains == "targets":
        return warm_up(args)
    if trains == "every_loss":
        return run_every_loss(args, digits)
    trainer = GRPOTrainer(args=args, reward_funcs=[{"vowels": vowels, "alike": alike}[reward]])
    tokenizer = trainer.processing_class.tokenizer
    if engine == "by_prompt":
        with_engine(trainer, EngineByPrompt(tokenizer, trainer.model))
    if engine == "stops_apart":
        with_engine(
            trainer, EngineThatStopsApart(tokenizer, trainer.model, args.process_index, args.rollout_token_budget)
        )
    if watches_weights:
        tower.PIECE = 16
        watch = WeightsThatAreHere(trainer.model)
    if nan_on_1 and args.process_index == 1:
        trainer.objective = NanInStepTwo(trainer)
    if signal_on_1 and args.process_index == 1:
        trainer.add_callback(SignalInStepOne())
    trainer.train(resume_from_checkpoint=find_checkpoint(args.resume_from_checkpoint, args.output_dir))
    assert isinstance(trainer.model, FSDPModule) == bool(args.fsdp)
    if watches_weights:
        Path(output, f"held-{args.process_index}.json").write_text(json.dumps(watch.most))
    trainer.save_model()
    trainer.accelerator.end_training()
