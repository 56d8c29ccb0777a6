#!/usr/bin/env python3
"""Documents show commands that exist, and what they print.

    tests/tools/documents/documents_test.py build/release/tools/stagecoach

Every command in README.md and docs/*.md that begins with "stagecoach" has flags that the program has. Those of the pages in RUN are run, and the lines shown
below them are among what they print, in that order: of `simulate` as they are, of others with any numbers, since times and the sizes of scratch depend on
the machine; but the columns of their tables that are in STABLE are as they are, too.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
RUN = ["tutorial.md", "data-parallel.md", "plan-files.md", "simulator.md"]
# By plan and model alone.
STABLE = ["device", "stage", "stages", "layers", "weights", "gradients", "optimizer", "stash", "parameters", "stashed", "limit", "in flight"]
PROGRAM = None


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    """The fenced and the indented blocks of a page: the line of text before, whether it is fenced, and its lines."""
    block, fenced, before = [], False, ""
    for line in page.read_text().splitlines() + [""]:
        if line.startswith("```"):
            if fenced:
                yield before, True, block
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


def commands(page):
    """What a page tells people to run, as (command, lines shown of what it prints): those below it, up to another program, an error or a file."""
    current = None
    for _, is_fenced, block in blocks(page):
        for line in block:
            if re.match(r"stagecoach [a-z]+( |$)", line):
                if current:
                    yield current
                current = (line.split("  #")[0].strip(), [])
            elif re.match(r"stagecoach( [a-z]+)?: |build/|export |\{", line):
                if current:
                    yield current
                current = None
            elif current and line.strip() and not is_fenced:
                current[1].append(line)
    if current:
        yield current


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


class Documents(unittest.TestCase):
    def flags_of(self, words):
        """Of the command that these words begin with: one, or two as in `checkpoint export`."""
        for count in (2, 1):
            done = subprocess.run([PROGRAM, "help", *words[:count]], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return set(re.findall(r"(?<![\w-])--?[a-zA-Z][a-z0-9-]*", done.stdout))
        self.fail(f"there is no command {words[0]}")

    def test_commands_have_flags_that_there_are(self):
        checked = 0
        for page in pages():
            for line, _ in commands(page):
                for part in line.split(" -- "):
                    part = part.split("stagecoach ")[-1]
                    if "|" in part or not re.fullmatch("[a-z]+", part.split()[0]):
                        continue
                    flags = set(re.findall(r"(?<=\s)--[a-z][a-z0-9-]*", part))
                    if flags:
                        checked += 1
                        self.assertLessEqual(flags, self.flags_of(part.split()), f"{page.name}: {line}")
        self.assertGreater(checked, 25)

    def test_commands_print_what_is_shown(self):
        for name in RUN:
            with self.subTest(page=name), tempfile.TemporaryDirectory() as folder:
                page = ROOT / "docs" / name
                for before, _, block in blocks(page):
                    file = re.search(r"`([a-z.]+)`:$", before)
                    if file:
                        (pathlib.Path(folder) / file.group(1)).write_text("\n".join(block) + "\n")
                shown = list(commands(page))
                self.assertTrue(shown)
                for command, lines in shown:
                    self.check_prints(folder, command, lines)

    def check_prints(self, folder, command, lines):
        arguments = ["sh", "-c", command] if "|" in command else [PROGRAM, *shlex.split(command)[1:]]
        path = f"{pathlib.Path(PROGRAM).parent}:{os.environ['PATH']}"
        done = subprocess.run(arguments, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False, timeout=300)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stderr}")
        kind = str.rstrip if command.startswith("stagecoach simulate") else words
        printed = [kind(line) for line in done.stdout.splitlines()]
        at = 0
        for line in lines:
            if kind(line) in printed[at:]:
                at = printed.index(kind(line), at) + 1
            else:
                self.fail(f"{command} does not print\n{line}\nbut\n{done.stdout}")
        if kind is words:
            self.check_tables(command, lines, done.stdout)

    def check_tables(self, command, lines, printed):
        for names, rows in tables(lines):
            stable = [i for i, name in enumerate(names) if name in STABLE]
            known = [[row[i] for i in stable] for columns, all_rows in tables(printed.splitlines()) if columns == names for row in all_rows]
            for row in rows:
                self.assertIn([row[i] for i in stable], known, f"{command}: {[names[i] for i in stable]} of\n{printed}")


if __name__ == "__main__":
    PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
