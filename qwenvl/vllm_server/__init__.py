"""A server that samples with vLLM, in an environment of its own. The trainer imports ``wire`` alone of this room."""
