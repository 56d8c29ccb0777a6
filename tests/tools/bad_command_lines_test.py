"""Gives the program bad command lines and files, and expects of each one line that says so.

A file that is not what its flag takes is status 65, whichever flag named it; output that cannot be
written is 74; a bad value is 2. Nothing else is printed, no control character reaches the terminal,
and nothing is left behind.
"""

import concurrent.futures
import itertools
import os
import subprocess
import sys
import tempfile

TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                         "../fixtures/tokenizers/gpt2.json")
USAGE, BAD_DATA, CANNOT_WRITE = 2, 65, 74

SMALL = ["--data", "synthetic:64x4x2", "--layers", "2", "--width", "4", "--global-batch-size", "8",
         "--stages", "2", "--epochs", "1"]
PLAN = ["plan", *SMALL[:-4], "--devices", "2", "--micro-batches", "2"]
SIMULATE = ["simulate", "--stages", "2", "--micro-batches", "2"]

# FILE is replaced by the path of each bad file with that ending.
INPUTS = {
    "data.csv": ["train", *SMALL[2:], "--data", "FILE"],
    "data.npy": ["train", *SMALL[2:], "--data", "FILE"],
    "data.bin": ["train", "--model", "gpt2:blocks=1,width=8,heads=2", "--data", "FILE"],
    "model.toml": ["train", *SMALL[:2], "--global-batch-size", "8", "--model", "FILE"],
    "schedule.csv": ["train", *SMALL, "--schedule", "FILE"],
    "schedule.json": ["simulate", "--schedule", "FILE"],
    "plan.json": ["train", *SMALL[:6], "--plan", "FILE"],
    "tokenizer.json": ["train", "--data", __file__, "--tokenizer", "FILE"],
    "tokenizer.model": ["prepare", "--text", __file__, "--output", "ids.bin", "--tokenizer", "FILE"],
    "folder": ["generate", "--prompt", "a", "--init", "FILE"],
    "prompts.jsonl": ["generate", "--init", "none", "--prompts", "FILE"],
    "profile.json": ["plan", "--profile", "FILE", "--devices", "2"],
    "transformer.toml": ["plan", "--profile", "FILE", "--devices", "2"],
    "profile.csv": ["plan", "--profile", "FILE", "--devices", "2"],
    "cluster.toml": [*PLAN, "--cluster", "FILE"],
    "other.json": [*PLAN, "--compare", "FILE"],
    "times.json": [*SIMULATE, "--times", "FILE"],
    "trace.json": ["trace", "show", "FILE"],
    "measured.json": ["trace", "diff", "FILE", "FILE"],
    "rings": ["trace", "merge", "FILE"],
    "checkpoint": ["checkpoint", "inspect", "FILE"],
    "verified": ["checkpoint", "verify", "FILE"],
    "run": ["predict", "--checkpoint", "FILE"],
    "replayed": ["replay", "FILE"],
}

COMMON = {
    "empty": b"",
    "binary": bytes(range(256)) * 8,
    "control": b'{"a": "\x1b[2J", \x1b]0;title\x07}\nname = "\x1b[31m"\n\x1b[5m,1\n',
}
RARE = {
    "nested": b"[" * 20000,
    "nested table": b"a = " + b"[" * 20000,
    "keys": b".".join([b"a"] * 20000) + b" = 1\n",
    "long line": b"x" * 300_000,
    "huge number": b'{"version": 1e999, "stages": 99999999999999999999}',
    "huge numbers": b"a,b\n1e999,99999999999999999999\n",
}

OUTPUTS = [
    ["train", *SMALL, "--trace", "FILE"],
    ["train", *SMALL, "--checkpoint", "FILE"],
    ["train", *SMALL, "--metrics", "FILE"],
    ["train", *SMALL, "--tensorboard", "FILE"],
    [*PLAN, "--save", "FILE"],
    [*PLAN, "--html", "FILE"],
    [*PLAN, "--export", "torch:FILE"],
    ["profile", *SMALL[:6], "--analytic", "--output", "FILE"],
    [*SIMULATE, "--html", "FILE"],
    [*SIMULATE, "--schedule", "1f1b,gpipe", "--html", "FILE"],
    [*SIMULATE, "--svg", "FILE"],
    [*SIMULATE, "--trace", "FILE"],
    [*SIMULATE, "--save", "FILE"],
    ["prepare", "--text", __file__, "--output", "FILE", "--tokenizer", TOKENIZER],
    ["launch", "-p", "1", "--log-dir", "FILE", "--", "true"],
]

NUMBERS = [
    (["train", *SMALL], ["--layers", "--width", "--global-batch-size", "--micro-batches", "--epochs", "--steps",
                         "--seed", "--train-samples", "--eval-every", "--timeout", "--learning-rate",
                         "--threads-per-device", "--replicas", "--chunks",
                         "--device-memory", "--stages", "--warmup-steps", "--keep-checkpoints"]),
    (PLAN, ["--devices", "--micro-batches", "--time-limit", "--device-memory", "--replicas"]),
    (SIMULATE, ["--stages", "--micro-batches", "--forward", "--latency", "--stash-limit"]),
    (["generate", "--init", "none", "--prompt", "a"], ["--tokens", "--temperature", "--top-p"]),
]
VALUES = ["", "x", "-1", "nan", "1e999", "99999999999999999999", "1\x1b[2J", "\n"]

# A file of one kind where another is expected, made by the commands of MADE.
MADE = {
    "plan.json": [*PLAN, "--save", "MADE"],
    "schedule.json": [*SIMULATE, "--save", "MADE"],
    "schedule.csv": [*SIMULATE, "--save", "MADE"],
    "trace.json": [*SIMULATE, "--trace", "MADE"],
    "profile.json": ["profile", *SMALL[:6], "--analytic", "--output", "MADE"],
    "run": ["train", *SMALL, "--checkpoint", "MADE"],
}
WRITTEN = {
    "layers.csv": "layer,forward_ms,backward_ms,output_bytes,parameter_bytes\na,1,2,3,4\n",
    "table.csv": "a,b,label\n1,2,0\n3,4,1\n5,6,0\n",
    "cluster.toml": "version = 1\n[[group]]\ndevices = 2\n",
    "model.toml": '[[layer]]\ntype = "linear"\noutputs = "classes"\n',
    "transformer.toml": "version = 1\nlayers = 2\n",
    "config.json": '{"model_type": "resnet", "depths": [1]}',
    "times.json": '{"stages": [{"forward_ms": 1, "backward_ms": 1, "weight_ms": 1}]}',
    "text.txt": "a text\n",
}
# Of each flag, what it takes, and the kinds of files that are not that.
OTHER_KINDS = [
    (["train", *SMALL[:6], "--plan"], [k for k in [*MADE, *WRITTEN] if k != "plan.json"]),
    (["train", *SMALL, "--schedule"],
     ["plan.json", "trace.json", "profile.json", "times.json", "layers.csv", "table.csv"]),
    (["simulate", "--schedule"],
     ["plan.json", "trace.json", "profile.json", "times.json", "layers.csv", "table.csv"]),
    ([*SIMULATE, "--times"], [k for k in [*MADE, *WRITTEN] if k != "times.json"]),
    (["plan", "--devices", "2", "--profile"],
     ["plan.json", "schedule.json", "schedule.csv", "trace.json", "times.json", "table.csv",
      "config.json", "cluster.toml", "model.toml", "text.txt", "run"]),
    ([*PLAN[:-4], "--micro-batches", "2", "--cluster"],
     [k for k in [*MADE, *WRITTEN] if k != "cluster.toml"]),
    ([*PLAN, "--compare"], ["schedule.json", "trace.json", "profile.json", "times.json"]),
    (["train", *SMALL[:2], "--global-batch-size", "8", "--model"],
     ["cluster.toml", "transformer.toml"]),
    (["train", *SMALL[2:], "--data"], ["layers.csv", "schedule.csv"]),
    (["trace", "show"], [k for k in [*MADE, *WRITTEN] if k != "trace.json"]),
    (["trace", "merge"], [*MADE, *WRITTEN]),
    (["checkpoint", "inspect"], [k for k in [*MADE, *WRITTEN] if k != "run"]),
    (["checkpoint", "verify"], [k for k in [*MADE, *WRITTEN] if k != "run"]),
    (["predict", "--checkpoint"], [k for k in [*MADE, *WRITTEN] if k != "run"]),
    (["generate", "--prompt", "a", "--init"], [*MADE, *WRITTEN]),
    (["generate", "--prompt", "a", "--checkpoint"], [*MADE, *WRITTEN]),
    (["prepare", "--text", __file__, "--output", "ids.bin", "--tokenizer"], [*MADE, *WRITTEN]),
]

# "-" where there is no such file, or two of them.
DASHES = [
    ["train", *SMALL, "--metrics", "-"], ["train", *SMALL, "--tensorboard", "-"],
    ["train", *SMALL, "--checkpoint", "-"], ["train", *SMALL[:6], "--init", "-"],
    ["checkpoint", "export", "run", "--output", "-"], ["checkpoint", "inspect", "-"],
    ["predict", "--checkpoint", "-"], ["predict", "--checkpoint", "run", "--outputs", "-"],
    ["prepare", "--text", "-", "--output", "ids.bin", "--tokenizer", TOKENIZER],
    ["prepare", "--text", __file__, "--output", "-", "--tokenizer", TOKENIZER],
    ["generate", "--prompt", "a", "--init", "-"],
    [*SIMULATE, "--save", "-", "--trace", "-"], [*PLAN, "--save", "-", "--html", "-"],
    [*PLAN, "--export", "torch:-", "--save", "-"],
]

LIBRARY_WORDS = ["TEXT", "REQUIRED", "TOML_", "nlohmann", "json.exception", "CLI::", "std::",
                 "terminate", "basic_string", "vector::", "stoi", "oneDNN", "tmp-", ".tmp", ".XXXXXX"]


def problems(done, status):
  err = done.stderr.decode(errors="backslashreplace")
  lines = err.splitlines()
  found = []
  if done.returncode != status:
    found.append(f"status {done.returncode}, expected {status}")
  if len(lines) != 1 or not err.startswith("stagecoach"):
    found.append(f"{len(lines)} lines")
  if any(c < " " and c != "\n" or "\x7f" <= c < "\xa0" for c in err):
    found.append("control characters")
  if len(err) > 2100:
    found.append(f"{len(err)} characters")
  return found + [f"the word {word}" for word in LIBRARY_WORDS if word in err]


def replaced(arguments, path):
  return [argument.replace("FILE", path) for argument in arguments]


def input_cases(folder):
  """Of every flag each kind of content that is always tried, and one of the rare ones in turn."""
  rare = itertools.cycle(RARE)
  for ending, arguments in INPUTS.items():
    for name in [*COMMON, next(rare), next(rare)]:
      path = os.path.join(folder, f"{name} {ending}")
      with open(path, "wb") as file:
        file.write({**COMMON, **RARE}[name])
      yield replaced(arguments, path), BAD_DATA
    path = os.path.join(folder, f"folder {ending}")
    os.mkdir(path)
    for bad in [path, f"{folder}/\x1b[2J\n{ending}", "n" * 300 + ending]:
      yield replaced(arguments, bad), BAD_DATA


def output_cases(folder):
  a_file = os.path.join(folder, "a file")
  with open(a_file, "w", encoding="utf-8") as file:
    file.write("text")
  for arguments in OUTPUTS:
    for path in [f"{a_file}/below.json", f"{folder}/{'n' * 300}.json", f"{a_file}/\x1b[2J.json"]:
      yield replaced(arguments, path), CANNOT_WRITE


def number_cases():
  values = itertools.cycle(VALUES)
  for arguments, flags in NUMBERS:
    for flag in flags:
      for value in [next(values), next(values)]:
        yield [*arguments, f"{flag}={value}"], USAGE


def dash_cases():
  for arguments in DASHES:
    yield arguments, USAGE


def kind_cases(program, folder):
  for name, arguments in MADE.items():
    made = [argument.replace("MADE", os.path.join(folder, name)) for argument in arguments]
    subprocess.run([program, *made], capture_output=True, check=True, timeout=300)
  for name, text in WRITTEN.items():
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
      file.write(text)
  for arguments, kinds in OTHER_KINDS:
    for kind in kinds:
      yield [*arguments, os.path.join(folder, kind)], BAD_DATA


def tree(folder):
  return {os.path.join(top, name) for top, folders, files in os.walk(folder)
          for name in folders + files}


def main():
  program = os.path.abspath(sys.argv[1])
  with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as empty:
    cases = [*input_cases(folder), *output_cases(folder), *number_cases(), *dash_cases(),
             *kind_cases(program, folder)]
    before = tree(folder)

    def check(case):
      arguments, status = case
      done = subprocess.run([program, *arguments], cwd=empty, capture_output=True, timeout=300,
                            stdin=subprocess.DEVNULL, check=False)
      found = problems(done, status)
      if not found:
        return 0
      shown = " ".join(argument[:80] for argument in arguments)
      print(f"{'; '.join(found)}\n  {shown!r}\n  {done.stderr[:600]}")
      return 1

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
      failed = sum(pool.map(check, cases))
    left = tree(folder) - before | tree(empty)
    if left:
      print(f"left behind: {sorted(left)}")
    print(f"{failed} of {len(cases)} are not told as they should be")
    return 1 if failed or left else 0


if __name__ == "__main__":
  sys.exit(main())
