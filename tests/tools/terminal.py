"""Runs a command in a terminal of its own, as a person would see it."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def output_in_a_terminal(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> str:
    """What a command prints whose stdin, stdout and stderr are a terminal; it must end well."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    output = b""
    try:
        while data := os.read(ours, 65536):
            output += data
    except OSError:
        pass  # how Linux says that the other side is closed
    os.close(ours)
    assert process.wait(timeout=60) == 0, output.decode()
    return output.decode()
