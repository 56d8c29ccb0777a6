#!/usr/bin/env python3
"""The files in examples/deploy name files, presets and flags that exist. Needs nothing but Python and the program.

    tests/tools/documents/deploy_test.py build/release/tools/stagecoach
"""

import configparser
import json
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "examples" / "deploy"
PROGRAM = None
# docs/cli.md: what another try would only repeat, and a run that SIGTERM has saved.
REPEATED, SAVED = {2, 65, 74, 78}, 143


def flags_of(command):
    """The flags of `stagecoach COMMAND`."""
    help_text = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][a-z0-9-]*", help_text))


def train_arguments(text):
    """The arguments of each `train` in a text whose lines may begin with #."""
    return [shlex.split(match) for match in re.findall(r"(?:stagecoach|stagecoach\.sif) train ([^`\n.]*(?:\.[a-z][^`\n.]*)*)", text)]


class Deploy(unittest.TestCase):
    def check_flags(self, arguments):
        given = {argument for argument in arguments if argument.startswith("--")}
        self.assertTrue(given)
        self.assertLessEqual(given, flags_of("train"))

    def test_every_file_is_one_of_these(self):
        self.assertEqual({path.name for path in DEPLOY.iterdir()}, {"Dockerfile", "job.yaml", "stagecoach.def", "stagecoach.service"})

    def test_images_are_built_from_what_there_is(self):
        dockerfile = (DEPLOY / "Dockerfile").read_text()
        instructions = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", dockerfile)).splitlines()
        names = [line.split()[0] for line in instructions if line]
        self.assertEqual(names[0], "FROM")
        self.assertLessEqual(set(names), {"FROM", "RUN", "COPY", "WORKDIR", "STOPSIGNAL", "ENTRYPOINT", "CMD"})
        for line in instructions:
            if line.startswith("COPY ") and "--from" not in line:
                for source in line.split()[1:-1]:
                    self.assertTrue((ROOT / source).exists(), source)
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        definition = (DEPLOY / "stagecoach.def").read_text()
        for text in dockerfile, definition:
            for kind, command in ("configurePresets", "cmake"), ("buildPresets", "cmake --build"), ("packagePresets", "cpack"):
                preset = re.search(command + r" --preset (\w+)", text)[1]
                self.assertIn(preset, [one["name"] for one in presets[kind]])
        # By the paths that the package is written to.
        package = (ROOT / "cmake" / "StagecoachPackage.cmake").read_text()
        self.assertIn("stagecoach", package)
        self.assertEqual(re.findall(r"(?m)^%(\w+)", definition), ["files", "post", "runscript"])
        for arguments in train_arguments(definition):
            self.check_flags(arguments)

    def test_the_service_of_systemd_saves_when_it_is_stopped(self):
        parser = configparser.ConfigParser(interpolation=None)
        parser.optionxform = str
        parser.read(DEPLOY / "stagecoach.service")
        service = parser["Service"]
        program, command, *arguments = shlex.split(service["ExecStart"])
        self.assertEqual((program, command), ("/usr/bin/stagecoach", "train"))
        self.check_flags(arguments)
        self.assertIn("--resume", arguments)
        self.assertEqual(service["KillSignal"], "SIGTERM")
        self.assertEqual(int(service["SuccessExitStatus"]), SAVED)
        self.assertEqual({int(status) for status in service["RestartPreventExitStatus"].split()}, REPEATED)

    def test_the_job_of_kubernetes_resumes(self):
        job = (DEPLOY / "job.yaml").read_text()
        arguments = [word.strip(' "') for word in re.search(r"args: \[(.*)\]", job)[1].split(",")]
        self.assertEqual(arguments[0], "train")
        self.check_flags(arguments[1:])
        self.assertIn("--resume", arguments)
        self.assertEqual({int(status) for status in re.search(r"values: \[(.*)\]", job)[1].split(",")}, REPEATED)
        self.assertNotIn("\t", job)
        for line in job.splitlines():
            indent = len(line) - len(line.lstrip(" "))
            self.assertEqual(indent % 2, 0, line)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
