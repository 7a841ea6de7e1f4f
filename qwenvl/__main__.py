"""``python -m qwenvl`` is the console command ``qwenvl``."""

from qwenvl.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
