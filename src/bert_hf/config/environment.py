"""Sets the environment variables that torch and OpenMP read when they are loaded."""

import os


def set_environment() -> None:
    """Set the variables that the user has not set. To be called before torch is imported."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    # A thread that waits for another in a loop keeps its core: beside a busy program, training all but stops
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
