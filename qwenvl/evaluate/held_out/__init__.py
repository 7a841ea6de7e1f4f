"""``qwenvl evaluate``: what models are worth on records that nothing learned from."""
