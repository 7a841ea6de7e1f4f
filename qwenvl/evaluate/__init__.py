"""Ask models: ``qwenvl probe``, ``qwenvl evaluate`` and ``qwenvl try``."""
