"""The file that launchers run: ``python qwenvl/train/train_grpo.py``, ``torchrun ... qwenvl/train/train_grpo.py``."""

import os
import sys

if __package__ in (None, ""):
    # Run as a file: Python puts this folder first on the path, where a file that is called like a module of the
    # standard library or of a dependency would take its place. The folder that holds the package is what is meant.
    # Only os and sys are imported so far: Python itself has loaded both before it runs this file.
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.realpath(entry) != here]
    sys.path.insert(0, os.path.dirname(os.path.dirname(here)))

from qwenvl.train.run.start import start_training as main

if __name__ == "__main__":
    main()
