"""Under torchrun: runs and checks every plan of a folder by turns. Starting processes takes longer than to train."""

import pathlib
import sys

import torch.distributed

from stagecoach_torch.plan import Plan
from stagecoach_torch.run import run, start
from stagecoach_torch.task import Task

task = Task("chains")
device = start("cpu")
failed = []
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    if not run(Plan(path, path.with_suffix(".csv")), task, device, steps=1, checks=True):
        failed.append(path.stem)
torch.distributed.destroy_process_group()
if failed:
    sys.exit(f"gradients differ: {failed}")
