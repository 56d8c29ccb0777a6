"""Runs short commands, and reads what programs print."""

import json
import os
import subprocess

_LIMIT_S = 10


def output_of(command, env=None):
    """What a short command prints; "" if it cannot be run or fails."""
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                text=True, timeout=_LIMIT_S, env={**os.environ, **(env or {})})
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout if result.returncode == 0 else ""


def json_lines(text):
    """The JSON objects among the lines of a text."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                pass  # a line that was cut short
    return found
