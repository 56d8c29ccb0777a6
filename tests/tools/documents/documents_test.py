#!/usr/bin/env python3
"""Documents show commands that exist, what they print, and links that lead somewhere.

    tests/tools/documents/documents_test.py build/release/tools/stagecoach

Every command in README.md and docs/*.md that begins with "stagecoach" has flags that the program has. The commands of
the sections in RUN, and those in ALSO_RUN, are run, one after the other in one shell, and the lines shown below them
are among what they print, in that order: for `simulate` as they are, for others with any numbers, since times and the
sizes of scratch depend on the machine; but the columns of their tables that are in STABLE must match exactly.

Every link of these pages to a file or to a heading has its target.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
# (page, section): of a page as a whole, the section is "".
RUN = [
    ("tutorial.md", ""),
    ("concepts.md", ""),
    ("fine-tuning.md", ""),
    ("distributed.md", "Data parallelism from the beginning"),
    ("planner.md", "Plan files and exports"),
    ("schedules.md", "Simulating schedules"),
]
# In other sections, the commands whose files are all shown there.
ALSO_RUN = {("planner.md", "Profiles and clusters"): ["stagecoach plan --profile mixtral.toml"]}
# Files of this repository that a page says to copy, by the names of the copies.
COPIES = {"fine-tuning.md": {"tokenizer.json": "tests/fixtures/tokenizers/qwen2.json"}}
# What a command line of the pages begins with, other than "stagecoach", which may stand anywhere in it.
SHELL = r"(cmake|export|for|g\+\+|kill|sh|until) |\./[a-z]+( |$)"
# Columns whose values follow from plan and model alone.
STABLE = ["device", "stage", "stages", "layers", "weights", "gradients", "optimizer", "stash", "parameters", "stashed", "limit", "in flight"]
COMMAND_LIMIT_S = 200
# Printed after each command, with its exit status.
END = "the end of this command:"
PROGRAM = None


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def text_lines(page):
    """The lines of a page, each with whether it is outside of fenced blocks."""
    fenced = False
    for line in page.read_text().splitlines():
        fence = line.startswith("```")
        yield line, not fenced and not fence
        fenced ^= fence


def lines_of(page, section=""):
    """The lines of the section with that title, without the heading; of the whole page if there is no title."""
    lines, inside = [], not section
    for line, is_text in text_lines(page):
        if section and is_text and line.startswith("## "):
            inside = line == f"## {section}"
        elif inside:
            lines.append(line)
    return lines


def blocks(lines):
    """The fenced and the indented blocks: the line of text before, whether it is fenced, and its lines."""
    block, fenced, before = [], False, ""
    for line in [*lines, ""]:
        if line.startswith("```"):
            if fenced:
                yield before, True, block
                before = ""
            block, fenced = [], not fenced
        elif fenced:
            block.append(line)
        elif line.startswith("    "):
            block.append(line[4:])
        elif line.strip() or block:
            if block:
                # An empty line does not end an indented block.
                if not line.strip():
                    block.append("")
                    continue
                yield before, False, block
                block = []
            before = line
    if block:
        yield before, False, block


def commands(lines):
    """What a page tells people to run, as (command, lines shown of what it prints): those below it, up to the next
    command, an error or a file."""
    current = None
    for _, is_fenced, block in blocks(lines):
        for line in block:
            is_command = re.match(r"stagecoach [a-z]+( |$)", line) or (not is_fenced and re.match(SHELL, line))
            if current and (is_command or re.match(r"stagecoach( [a-z]+)?: |build/|\{", line)):
                yield current
                current = None
            if is_command:
                current = (line.split("  #")[0].strip(), [])
            elif current and line.strip() and not is_fenced:
                current[1].append(line)
    if current:
        yield current


class Shell:
    """A shell in a folder, which runs one command after the other: later ones see variables and jobs of earlier ones."""

    def __init__(self, folder):
        path = f"{pathlib.Path(PROGRAM).parent}:{os.environ['PATH']}"
        self.process = subprocess.Popen(["bash"], cwd=folder, env={**os.environ, "PATH": path}, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def run(self, command):
        """Returns the exit status, and what was printed."""
        self.process.stdin.write(f"{{ {command}\n}} </dev/null\necho \"{END} $?\"\n")
        self.process.stdin.flush()
        limit = threading.Timer(COMMAND_LIMIT_S, self.kill)
        limit.start()
        printed = []
        try:
            for line in self.process.stdout:
                before, end, status = line.partition(f"{END} ")
                printed.append(before)
                if end:
                    return int(status), "".join(printed)
            return self.process.wait(), "".join(printed)
        finally:
            limit.cancel()

    def kill(self):
        """Ends the shell, and what it has left running."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self):
        self.kill()
        self.process.communicate()


def words(line):
    """A line without its numbers, units and bars."""
    line = re.sub(r"[0-9a-f]{32}", "HASH", line)
    line = re.sub(r"[0-9][0-9.,]*( ([kMG]?B|[mun]?s|%)(?![a-z]))?", "#", line)
    return re.sub(r"[\s▏▎▍▌▋▊▉█-]+", " ", line).strip()


def tables(lines):
    """The tables among the lines, each as the names of its columns and its rows: what stands above and below a line of rules."""
    for i, line in enumerate(lines):
        if i == 0 or not re.fullmatch(r"\s*---[\s-]*", line):
            continue
        spans = [match.span() for match in re.finditer("-+", line)]

        def cells(text, spans=spans):
            return [text[begin:end].strip() for begin, end in spans]

        rows = []
        for row in lines[i + 1 :]:
            gaps = [row[end:begin] for (_, end), (begin, _) in zip(spans, spans[1:])]
            if not row.strip() or "".join(gaps).strip() or row[spans[-1][1] :].strip():
                break
            rows.append(cells(row))
        yield cells(lines[i - 1]), rows


def anchors(page):
    """The names by which GitHub links to the headings of a page."""
    names = []
    for line, is_text in text_lines(page):
        heading = re.match(r"#+ (.*)", line)
        if is_text and heading:
            name = re.sub(r"[^\w\- ]", "", heading.group(1).strip().lower()).replace(" ", "-")
            count = sum(re.fullmatch(re.escape(name) + r"(-\d+)?", other) is not None for other in names)
            names.append(f"{name}-{count}" if count else name)
    return names


def links(page):
    """Where the page's links lead, but for those to other sites."""
    text = "\n".join(line for line, is_text in text_lines(page) if is_text and not line.startswith("    "))
    text = re.sub(r"`[^`]*`", "", text)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


class Documents(unittest.TestCase):
    def flags_of(self, words):
        """The flags of the command that these words begin with: one word, or two as in `checkpoint export`."""
        for count in (2, 1):
            done = subprocess.run([PROGRAM, "help", *words[:count]], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return set(re.findall(r"(?<![\w-])--?[a-zA-Z][a-z0-9-]*", done.stdout))
        self.fail(f"there is no command {words[0]}")

    def test_commands_have_flags_that_there_are(self):
        checked = 0
        for page in pages():
            for line, _ in commands(lines_of(page)):
                if "stagecoach " not in line:
                    continue
                for part in line.split(" -- "):
                    part = part.split("stagecoach ")[-1]
                    if "|" in part or not re.fullmatch("[a-z]+", part.split()[0]):
                        continue
                    flags = set(re.findall(r"(?<=\s)--[a-z][a-z0-9-]*", part))
                    if flags:
                        checked += 1
                        self.assertLessEqual(flags, self.flags_of(part.split()), f"{page.name}: {line}")
        self.assertGreater(checked, 25)

    def test_links_lead_somewhere(self):
        checked = 0
        for page in [*pages(), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]:
            for link in links(page):
                checked += 1
                path, _, anchor = link.partition("#")
                target = page.parent / path if path else page
                self.assertTrue(target.exists(), f"{page.name}: {link}")
                if anchor:
                    self.assertIn(anchor, anchors(target), f"{page.name}: {link}")
        self.assertGreater(checked, 80)

    def test_commands_print_what_is_shown(self):
        for name, section in [*RUN, *ALSO_RUN]:
            with self.subTest(page=name, section=section), tempfile.TemporaryDirectory() as folder:
                for copy, original in COPIES.get(name, {}).items():
                    shutil.copy(ROOT / original, pathlib.Path(folder) / copy)
                lines_shown = lines_of(ROOT / "docs" / name, section)
                for before, _, block in blocks(lines_shown):
                    file = re.search(r"`([a-z.]+)`:$", before)
                    if file:
                        (pathlib.Path(folder) / file.group(1)).write_text("\n".join(block) + "\n")
                # The build, and the examples, as in the root of the repository.
                (pathlib.Path(folder) / "build").mkdir()
                (pathlib.Path(folder) / "build" / "release").symlink_to(pathlib.Path(PROGRAM).parents[1])
                (pathlib.Path(folder) / "examples").symlink_to(ROOT / "examples")
                only = tuple(ALSO_RUN.get((name, section), [""]))
                shown = [(command, lines) for command, lines in commands(lines_shown) if command.startswith(only)]
                self.assertTrue(shown)
                shell = Shell(folder)
                try:
                    for command, lines in shown:
                        self.check_prints(shell, command, lines)
                finally:
                    shell.close()

    def check_prints(self, shell, command, lines):
        status, output = shell.run(command)
        self.assertEqual(status, 0, f"{command}: {output}")
        kind = str.rstrip if command.startswith("stagecoach simulate") else words
        printed = [kind(line) for line in output.splitlines()]
        at = 0
        for line in lines:
            if kind(line) in printed[at:]:
                at = printed.index(kind(line), at) + 1
            else:
                self.fail(f"{command} does not print\n{line}\nbut\n{output}")
        if kind is words:
            self.check_tables(command, lines, output)

    def check_tables(self, command, lines, printed):
        for names, rows in tables(lines):
            stable = [i for i, name in enumerate(names) if name in STABLE]
            known = [[row[i] for i in stable] for columns, all_rows in tables(printed.splitlines()) if columns == names for row in all_rows]
            for row in rows:
                self.assertIn([row[i] for i in stable], known, f"{command}: {[names[i] for i in stable]} of\n{printed}")


if __name__ == "__main__":
    PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
