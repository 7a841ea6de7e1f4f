"""What samples faster: the local engine, or vLLM behind HTTP? Seconds, tokens per second, and how far log-probs differ.

    python scripts/bench/engines.py                                   # a tiny model on this machine's CPU
    python scripts/bench/engines.py --model Qwen/Qwen2.5-VL-3B-Instruct --vllm_server 127.0.0.1:8200 --prompts 1 8 32

Without --vllm_server one is started here by scripts/serve_vllm.sh. The local engine samples on a GPU where there is
one: give the server another one, or the two share its memory and its time. As in training, each sampling follows new
weights, so that vLLM has computed no prompt before. Every completion has all its tokens (no end token).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bench_model import Case, video_prompt  # noqa: E402

from qwenvl.demo.tiny import save_tiny  # noqa: E402
from qwenvl.model.inputs import PromptInputs  # noqa: E402
from qwenvl.model.loading import apply_tuning  # noqa: E402
from qwenvl.model.logprobs import completion_logprobs  # noqa: E402
from qwenvl.model.options import TuneOptions  # noqa: E402
from qwenvl.model.vision_tower import encode_vision  # noqa: E402
from qwenvl.rollout.engine import EnginePrompts, SamplingParams  # noqa: E402
from qwenvl.rollout.local import SharedPrefixEngine  # noqa: E402
from qwenvl.rollout.servers import Server, Servers  # noqa: E402
from qwenvl.rollout.vllm import VllmEngine  # noqa: E402
from qwenvl.types import RolloutBatch  # noqa: E402

TEMPERATURE = 1.0


def main(argv: list[str] | None = None) -> None:
    """Prints a row for each number of prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a checkpoint; default: a tiny one, 256 wide with 8 layers")
    parser.add_argument("--vllm_server", metavar="HOST:PORT", help="a server that was started with the same model")
    parser.add_argument(
        "--case", type=Case.parse, default=Case(1000, 8, 64), metavar="P,G,C", help="prompt, group, completion"
    )
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=3, help="medians are printed")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model or tiny(Path(temporary) / "model")
        with server(options.vllm_server, folder, Path(temporary)) as address:
            compare(folder, address, options)


def tiny(folder: Path) -> Path:
    """A checkpoint whose heads vLLM's attention takes on a CPU."""
    sizes = {"hidden_size": 256, "num_layers": 8, "vision_hidden_size": 128, "vision_depth": 4}
    return save_tiny(folder, "qwen2_5_vl", initializer_range=0.1, **sizes)


@contextmanager
def server(address: str | None, model: Path | str, folder: Path) -> Iterator[str]:
    """The address of a server, which is started and ended here if none is given."""
    if address is not None:
        yield address
        return
    ready = folder / "ready"
    flags = ["--port", "0", "--ready_file", str(ready)]
    if not torch.cuda.is_available():
        flags += ["--dtype", "float32", "--max_model_len", "8192"]
    command = ["bash", str(HERE.parents[0] / "serve_vllm.sh"), str(model), *flags]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit(f"the server ended while it started:\n{(folder / 'log').read_text()[-3000:]}")
            time.sleep(0.2)
        yield ready.read_text().removeprefix("http://")
    finally:
        process.terminate()
        process.wait()


def compare(folder: Path | str, address: str, options: argparse.Namespace) -> None:
    """Both engines in turn, by numbers of prompts."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).to(device).eval()
    apply_tuning(model, TuneOptions())  # the tower is frozen, so that it runs once for both
    local = SharedPrefixEngine(AutoProcessor.from_pretrained(folder).tokenizer, model)
    local.end_ids = []
    remote = VllmEngine(local, Servers([Server(address)], patience=60), deadline=600)
    case = options.case
    params = SamplingParams(case.length, temperature=TEMPERATURE)
    print(f"{device}, {dtype}, prompts of about {case.prompt} tokens, {case.group} completions of {case.length} each")
    print("| prompts | local s | tokens/s | vLLM s | tokens/s | new weights s | log-probs differ by |")
    print("|---|---|---|---|---|---|---|")
    for count in options.prompts:
        prompts = encode_vision(model, PromptInputs.join([question(model, case, n) for n in range(count)]))
        asked = [EnginePrompts(batch=prompts, inputs=prompts)]  # engines ask a batch for its length alone
        spent: dict[str, list[float]] = {"local": [], "sync": [], "vllm": []}
        for repeat in range(options.repeats):
            timed(spent["local"], local.sample, model, asked, case.group, params, repeat)
            timed(spent["sync"], remote.sync, model, None)
            (rollout,) = timed(spent["vllm"], remote.sample, model, asked, case.group, params, repeat)
        seconds = {name: statistics.median(each) for name, each in spent.items()}
        rate = {name: count * case.group * case.length / seconds[name] for name in seconds}
        print(
            f"| {count} | {seconds['local']:.2f} | {rate['local']:.0f} | {seconds['vllm']:.2f} | {rate['vllm']:.0f} "
            f"| {seconds['sync']:.2f} | {difference(model, prompts, rollout):.1e} |",
            flush=True,
        )


def question(model: torch.nn.Module, case: Case, number: int) -> PromptInputs:
    """One of several prompts with different videos: vLLM computes the same one once."""
    prompt = video_prompt(model, case.prompt)
    pixels = torch.randn(prompt.pixel_values_videos.shape, generator=torch.Generator().manual_seed(number))
    tensors = {name: value for name, value in vars(prompt).items() if isinstance(value, torch.Tensor)}
    return replace(prompt, **{k: v.to(model.device) for k, v in (tensors | {"pixel_values_videos": pixels}).items()})


def timed(seconds: list[float], call: Callable, *arguments):
    """What ``call`` returns. How long it took is added to ``seconds``."""
    start = time.perf_counter()
    value = call(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds.append(time.perf_counter() - start)
    return value


def difference(model: torch.nn.Module, prompts: PromptInputs, rollout: RolloutBatch) -> float:
    """The largest between the server's log-probs and the trainer's."""
    ids, mask = rollout.completion_ids, rollout.completion_mask
    with torch.no_grad():
        own = completion_logprobs(model, prompts, ids, mask, temperature=TEMPERATURE, logit_chunk_tokens=512)
    return float((own - rollout.logprobs)[mask].abs().max())


if __name__ == "__main__":
    main()
