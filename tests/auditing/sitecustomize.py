"""Audit hook: Python imports this module at its start in every process whose PYTHONPATH names this folder.

Writes a JSON line into $AUDIT_LOG for each action that could run foreign code or send data:
["pickle", "module.name", file of the caller] · ["connect", address] · ["open", path] of a file with a suffix of
pickles · ["exec", path] of code under a folder in $AUDIT_NO_CODE.
"""

import json
import os
import sys

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
NO_CODE = tuple(filter(None, os.environ.get("AUDIT_NO_CODE", "").split(":")))


def caller() -> str:
    """The file that called pickle."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(("pickle.py", "sitecustomize.py")):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def hook(event: str, args: tuple) -> None:
    entry = None
    if event == "pickle.find_class":
        entry = ["pickle", f"{args[0]}.{args[1]}", caller()]
    elif event == "socket.connect":
        entry = ["connect", repr(args[1])]
    elif event == "open" and isinstance(args[0], str) and args[0].endswith(PICKLES):
        entry = ["open", args[0]]
    elif event == "exec" and getattr(args[0], "co_filename", "").startswith(NO_CODE or ("\0",)):
        entry = ["exec", args[0].co_filename]
    if entry is not None:
        descriptor = os.open(os.environ["AUDIT_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, json.dumps(entry).encode() + b"\n")
        os.close(descriptor)


if "AUDIT_LOG" in os.environ:
    sys.addaudithook(hook)
