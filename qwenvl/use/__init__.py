"""Use a trained model: ``qwenvl label`` and ``qwenvl serve``."""
