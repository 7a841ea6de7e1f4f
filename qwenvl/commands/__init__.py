"""The commands of ``qwenvl``: one module each, with ``main(argv)`` and nothing that another command needs."""
