"""Profiles PyTorch models for `stagecoach plan`, and runs its plans by torch.distributed.pipelining.

    python -m stagecoach_torch profile my_module --rows 1,2,4 -o profile.json
    torchrun --nproc-per-node 2 -m stagecoach_torch cluster -o cluster.toml
    stagecoach plan --profile profile.json --cluster cluster.toml --json --export torch-lowered:schedule.csv > plan.json
    torchrun --nproc-per-node 2 -m stagecoach_torch run plan.json schedule.csv my_module --check

`my_module` is any importable module with three functions: make_model() returns the model, make_batch(rows) its
input and target as tensors of `rows` rows, and loss(output, target) a mean over the rows. docs/planner.md says more.
"""
