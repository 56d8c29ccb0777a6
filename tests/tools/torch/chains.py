"""Models that package_test.py profiles and runs."""

import torch

WIDTH = 24


def make_model():
    layers = [torch.nn.Linear(12, WIDTH)]
    for _ in range(5):
        layers += [torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 3))


def make_unequal():
    """Another model on every rank."""
    torch.manual_seed(torch.seed())
    return make_model()


def make_tied():
    first, last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
    last.weight = first.weight
    return torch.nn.Sequential(torch.nn.Linear(12, WIDTH), first, last, torch.nn.Linear(WIDTH, 3))


def make_in_place():
    return torch.nn.Sequential(torch.nn.Linear(12, WIDTH), torch.nn.ReLU(inplace=True), torch.nn.Linear(WIDTH, 3))


def make_branch():
    class Branch(torch.nn.Module):
        pass

    return Branch()


def make_batch(rows):
    return torch.randn(rows, 12), torch.randint(3, (rows,))


def loss(output, target):
    return torch.nn.functional.cross_entropy(output, target)
