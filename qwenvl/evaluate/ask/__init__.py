"""``qwenvl try``: one question about clips and images, asked as training would ask it."""
