"""What is changed in vLLM's worker: positions, logits, and how weights are taken."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)

from qwenvl.vllm_server.link import LinkTransfer
from qwenvl.vllm_server.prompts import POSITIONS
from qwenvl.vllm_server.weights import is_of_vision, tensors_of


class WorkerExtension:
    """Methods that vLLM adds to its worker class. Each is called in all workers with ``LLM.collective_rpc``."""

    # The worker's own.
    model_runner: Any
    vllm_config: Any
    device: Any
    weight_transfer_engine: Any
    init_weight_transfer_engine: Any
    start_weight_update: Any
    update_weights: Any
    finish_weight_update: Any

    def install_hooks(self) -> None:
        """Lets the model take positions from the request, and divide its logits by the temperature."""
        model = self.model_runner.get_model()
        self._temperature = 1.0
        stock_positions, stock_logits = model.get_mrope_input_positions, model.compute_logits

        def positions(input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
            if not mm_features:
                return stock_positions(input_tokens, mm_features)
            given = mm_features[0].data[POSITIONS].data
            assert given.shape[1] == len(input_tokens), "positions of another prompt"
            return given, int(given.max()) + 1 - len(input_tokens)

        def logits(*args: Any, **kwargs: Any) -> Tensor | None:
            given = stock_logits(*args, **kwargs)  # None in workers that hold no part of the head
            return None if given is None else given.float() / self._temperature

        model.get_mrope_input_positions, model.compute_logits = positions, logits

    def set_temperature(self, temperature: float) -> None:
        """By which logits are divided from now on."""
        self._temperature = temperature

    def load_weights_file(self, path: str) -> list[str]:
        """Takes the weights of a file of safetensors. Gives the parameters of the model that were written.

        Raises:
            RuntimeError: a layer was written in part. What else it holds now is anything.
        """
        model = self.model_runner.get_model()
        # The steps of vLLM's reload_weights, which would let a layer that was written in part pass.
        initialize_layerwise_reload(model)
        written = model.load_weights(tensors_of(path))
        partial = _layers_in_part(model)
        finalize_layerwise_reload(model, self.model_runner.model_config)
        self._settle(partial)
        return sorted(written)

    def join_link(self, settings: dict[str, Any]) -> None:
        """Takes part in a link. Its settings are those of ``LinkInfo``."""
        if self.weight_transfer_engine is not None:
            self.weight_transfer_engine.shutdown()
        config = WeightTransferConfig(backend=settings["kind"])
        self.weight_transfer_engine = LinkTransfer(config, self.vllm_config, self.device, self.model_runner.get_model())
        self.init_weight_transfer_engine(settings)

    def receive_weights(self, shapes: dict[str, list[int]], dtype: str) -> list[str]:
        """Takes weights that come along the link, by the steps of vLLM. Gives the parameters that were written.

        Raises:
            RuntimeError: the link broke, or a layer was written in part.
        """
        model = self.model_runner.get_model()
        written: set[str] = set()
        load = model.load_weights

        def noted(weights: Any) -> set[str]:
            names = load(weights)
            written.update(names)
            return names

        self.start_weight_update()
        model.load_weights = noted  # vLLM's engines do not say what they wrote
        try:
            self.update_weights(
                {"names": [*shapes], "dtype_names": [dtype] * len(shapes), "shapes": [*shapes.values()]}
            )
        finally:
            del model.load_weights
        partial = _layers_in_part(model)
        self.finish_weight_update()
        self._settle(partial)
        return sorted(written)

    def _settle(self, partial: list[str]) -> None:
        """What has to follow new weights."""
        runner = self.model_runner
        runner.reset_lora_state()
        runner.reset_encoder_cache()
        runner.reset_mm_cache()
        if partial:
            raise RuntimeError(f"layers were given in part: {', '.join(partial)}")
        _repack_tied_head(runner.get_model())

    def language_parameters(self) -> list[str]:
        """The parameters that a sync of all weights must write."""
        return [name for name, _ in self.model_runner.get_model().named_parameters() if not is_of_vision(name)]


def _layers_in_part(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if _written_in_part(layer)]


def _written_in_part(layer: nn.Module) -> bool:
    info = get_layerwise_info(layer)
    if isinstance(layer, VocabParallelEmbedding):  # one weight, padded: what is not written is padding
        return False
    return info.can_load() and 0 < info.load_numel < info.load_numel_total


def _repack_tied_head(model: nn.Module) -> None:
    """On a CPU each linear layer holds a packed copy of its weights. Nobody packs a tied head's again."""
    language = model.language_model
    head = language.lm_head
    if head.weight is language.model.embed_tokens.weight:
        head.quant_method.process_weights_after_loading(head)
