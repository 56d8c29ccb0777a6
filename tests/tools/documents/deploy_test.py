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
DOCKERFILES = ["Dockerfile", "Dockerfile.cuda"]
DEFINITIONS = ["stagecoach.def", "stagecoach-cuda.def"]
PROGRAM = None
# docs/cli.md: what another try would only repeat, and a run that SIGTERM has saved.
REPEATED, SAVED = {2, 65, 74, 78}, 143


def flags_of(command):
    """The flags of `stagecoach COMMAND`."""
    help_text = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][a-z0-9-]*", help_text))


def train_arguments(text):
    """The arguments of each `train` in a text whose lines may begin with #."""
    return [shlex.split(match) for match in re.findall(r"(?:stagecoach|stagecoach(?:-cuda)?\.sif) train ([^`\n.]*(?:\.[a-z][^`\n.]*)*)", text)]


class Deploy(unittest.TestCase):
    def check_flags(self, arguments):
        given = {argument for argument in arguments if argument.startswith("--")}
        self.assertTrue(given)
        self.assertLessEqual(given, flags_of("train"))

    def test_every_file_is_one_of_these(self):
        self.assertEqual({path.name for path in DEPLOY.iterdir()}, {*DOCKERFILES, *DEFINITIONS, "job.yaml", "stagecoach.service"})

    def check_build(self, text):
        """What builds the packages in a recipe names presets, variables and components that there are."""
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        for kind, command in ("configurePresets", "cmake"), ("buildPresets", "cmake --build"), ("packagePresets", "cpack"):
            preset = re.search(command + r" --preset (\w+)", text)[1]
            self.assertIn(preset, [one["name"] for one in presets[kind]])
        cmake = "".join(path.read_text() for path in [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake")])
        for variable in re.findall(r"-D(\w+)=", text):
            self.assertRegex(cmake, rf"(option|set)\({variable}\b")
        components = {part for path in ROOT.glob("*/**/CMakeLists.txt") for part in re.findall(r"COMPONENT (\w+)", path.read_text())}
        self.assertLessEqual(set(re.findall(r"--component (\w+)", text)), components)
        self.check_libraries(re.sub(r"(?m)^#.*", "", text))

    def check_libraries(self, text):
        """No name of a Debian package has the version of a library, which differs between distributions: the packages
        that are built say what they need. (cuDNN is NVIDIA's.)"""
        names = re.findall(r"\blib[a-z][a-z0-9.+-]*", re.sub(r"libcudnn9-cuda-|libstagecoach", "", text))
        self.assertEqual([name for name in names if not name.endswith("-dev")], [])

    def test_packages_are_named_as_in_every_distribution(self):
        self.check_libraries(re.sub(r"#.*", "", (ROOT / "tools" / "packages.txt").read_text()))
        depends = re.search(r"libdevel ([^\n]*\n[^\n]*)\n", (ROOT / "cmake" / "StagecoachPackage.cmake").read_text())[1]
        self.assertIn("libdnnl-dev", depends)
        self.check_libraries(depends)

    def check_bases(self, bases):
        """A package is installed on the distribution that it was built on, for CUDA in the same version of that."""
        self.assertEqual(len({re.sub("-devel-|-runtime-", "-", base) for base in bases}), 1, bases)

    def test_images_are_built_from_what_there_is(self):
        for name in DOCKERFILES:
            with self.subTest(name):
                dockerfile = (DEPLOY / name).read_text()
                instructions = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", dockerfile)).splitlines()
                lines = [line.split() for line in instructions if line]
                self.assertEqual([line[0] for line in lines[:2]], ["ARG", "FROM"])
                self.assertLessEqual({line[0] for line in lines}, {"ARG", "FROM", "RUN", "COPY", "WORKDIR", "STOPSIGNAL", "ENTRYPOINT", "CMD"})
                self.check_build(dockerfile)
                self.check_stages(lines)
                named = set(re.findall(r"--target (\w+)", dockerfile))
                self.assertLessEqual(named, {line[3] for line in lines if line[0] == "FROM" and len(line) == 4})
                arguments = {line[1].split("=")[0] for line in lines if line[0] == "ARG"}
                self.assertEqual(set(re.findall(r"--build-arg (\w+)=", dockerfile)), arguments)
                self.assertLessEqual(set(re.findall(r"\$\{(\w+)", "\n".join(instructions))), arguments)
                self.assertEqual(lines[-2], ["ENTRYPOINT", '["stagecoach"]'])

    def check_stages(self, lines):
        """Each COPY takes what is in the repository and in no build folder, or is from an earlier stage."""
        self.assertIn("build", (ROOT / ".dockerignore").read_text().splitlines())
        stages, bases = [], []
        for line in lines:
            if line[0] == "FROM":
                stages.append(line[3] if len(line) == 4 else "")
                bases += [line[1]] if line[1] != "scratch" else []
            elif line[0] == "COPY" and line[1].startswith("--from="):
                self.assertIn(line[1].removeprefix("--from="), stages[:-1])
            elif line[0] == "COPY":
                for source in line[1:-1]:
                    self.assertTrue((ROOT / source).exists(), source)
        self.check_bases(bases)

    def test_apptainer_builds_from_what_there_is(self):
        for name in DEFINITIONS:
            with self.subTest(name):
                definition = (DEPLOY / name).read_text()
                self.check_build(definition)
                stages = re.split(r"(?m)^Bootstrap: docker\n", definition)[1:]
                for stage in stages:
                    sections = re.findall(r"(?m)^%(\w+)", stage)
                    ends = ["runscript"] if stage is stages[-1] else []
                    self.assertEqual(sections, ["arguments", "files", "post", *ends])
                    # Arguments belong to their stage.
                    given = set(re.findall(r"(?m)^ +(\w+)=", re.search(r"%arguments\n((?: .*\n)*)", stage)[1]))
                    self.assertEqual(set(re.findall(r"\{\{ (\w+) \}\}", stage)), given)
                    self.assertEqual(set(re.findall(r"--build-arg (\w+)=", definition)), given)
                names = re.findall(r"(?m)^Stage: (\w+)", definition)
                self.assertLessEqual(set(re.findall(r"(?m)^%files from (\w+)", definition)), set(names[:-1]))
                self.check_bases(re.findall(r"(?m)^From: (.*)", definition))
                self.assertTrue(train_arguments(definition))
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
