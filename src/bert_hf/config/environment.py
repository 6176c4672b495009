"""Sets the environment variables that torch reads when it is loaded."""

import os


def set_environment() -> None:
    """Set the variables that the user has not set. To be called before torch is imported."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
