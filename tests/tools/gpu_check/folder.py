"""What the tests of tools/gpu_check share."""

import json
import pathlib
import sys
import tempfile
import textwrap
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

# Far more than any step here takes, for those that are to end by themselves.
LONG_S = 60


class Folder(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text, mode=0o644):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        path.chmod(mode)
        return path

    def assert_ends(self, pid):
        """A process that has been sent a signal may run for a moment more."""
        give_up = time.monotonic() + LONG_S
        while is_running(pid) and time.monotonic() < give_up:
            time.sleep(0.01)
        self.assertFalse(is_running(pid))

    def results(self):
        return json.loads((self.folder / "out/results.json").read_text())


def has_text(path):
    return path.exists() and path.read_text().strip() != ""


def is_running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while it is read
        return False
    return state not in "ZX"
