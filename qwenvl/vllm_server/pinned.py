"""The version of vLLM that this server was held to the trainer with."""

VLLM = "0.32.0"  # scripts/serve_vllm.sh installs it
