#!/usr/bin/env python3
"""Training steps of GPT-2 124M in PyTorch on a CPU, as docs/performance.md compares them:

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE bench/torch_gpt2.py [--compile]
    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE torchrun --nproc-per-node 2 bench/torch_gpt2.py --microbatches 8 --rows 8 --context 256

float32, AdamW, the model of the library transformers without dropout. Alone it takes the rows at once. Under torchrun it is cut
into as many stages as there are processes, equal in blocks or of --blocks, which run torch.distributed.pipelining's 1F1B over Gloo; the head then
has a matrix of its own, since that library does not tie parameters of two stages. Prints for each step the loss, the time by the
clock, and the processor's time of this process, which other programs on the machine lengthen less.
"""

import argparse
import os
import time

import torch
import torch.distributed
import transformers
from torch.distributed import pipelining

STEPS = 6


class Stage(torch.nn.Module):
    """The blocks of one stage, with the embeddings before the first and the head behind the last."""

    def __init__(self, model, blocks, is_first, is_last):
        super().__init__()
        gpt = model.transformer
        self.wte, self.wpe = (gpt.wte, gpt.wpe) if is_first else (None, None)
        self.blocks = torch.nn.ModuleList(gpt.h[blocks])
        self.norm, self.head = (gpt.ln_f, model.lm_head) if is_last else (None, None)

    def forward(self, x):
        if self.wte is not None:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
            x = x[0] if isinstance(x, tuple) else x
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def single(model, ids, targets, compiles):
    call = torch.compile(model) if compiles else model

    def forward_backward():
        loss = loss_of(call(ids).logits, targets)
        loss.backward()
        return loss.item()

    return model, forward_backward


def pipelined(model, ids, targets, microbatches, blocks, compiles):
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    begin = sum(blocks[:rank])
    module = Stage(model, slice(begin, begin + blocks[rank]), rank == 0, rank == ranks - 1)
    if compiles:
        module.compile()
    stage = pipelining.PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(stage, microbatches, loss_fn=loss_of)

    def forward_backward():
        losses = []
        if rank == 0:
            schedule.step(ids)
        elif rank == ranks - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        return sum(loss.item() for loss in losses) / microbatches

    return module, forward_backward


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--blocks", type=lambda text: [int(part) for part in text.split(",")], help="of each stage: 9,3")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, n_positions=arguments.context,
                                     tie_word_embeddings=ranks == 1)
    model = transformers.GPT2LMHeadModel(config)
    rows = torch.randint(config.vocab_size, (arguments.rows, arguments.context + 1))
    if ranks == 1:
        module, forward_backward = single(model, rows[:, :-1], rows[:, 1:], arguments.compile)
    else:
        torch.distributed.init_process_group("gloo")
        blocks = arguments.blocks or [config.n_layer // ranks] * ranks
        module, forward_backward = pipelined(model, rows[:, :-1], rows[:, 1:], arguments.microbatches, blocks, arguments.compile)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward_backward()
        optimizer.step()
        return loss

    step()
    step()
    for _ in range(STEPS):
        wall, processor = time.perf_counter(), time.process_time()
        loss = step()
        print(f"loss {loss:.4f}  {time.perf_counter() - wall:.3f} s  {time.process_time() - processor:.3f} s of processor time",
              flush=True)


if __name__ == "__main__":
    main()
