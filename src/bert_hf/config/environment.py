"""Sets the environment variables that torch reads when it is loaded."""

import os


def set_environment() -> None:
    """Let torch's C++ code log only errors, unless the user has set its level. Called before torch is imported."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
