"""The engine that drafts, for tests that every engine passes."""

from contextlib import nullcontext

from qwenvl.rollout.local import SharedPrefixEngine


class DraftedEngine(SharedPrefixEngine):
    """Drafts of up to three tokens. It learns from greedy completions, which come again."""

    def __init__(self, tokenizer, model, **settings):
        super().__init__(tokenizer, model, **settings)
        self.draft(model, 3)

    def draw(self, model, prompts, group_size, params, seed, conversations=None):
        with self.drafter.learning() if params.temperature == 0 else nullcontext():
            return super().draw(model, prompts, group_size, params, seed, conversations)
