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


def make_in_place_later():
    """Like make_model(), but for the last layers."""
    model = make_model()
    for i in range(5, 11, 2):
        model[i] = torch.nn.ReLU(inplace=True)
    return model


def make_nested_in_place():
    block = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(WIDTH, 3))
    return torch.nn.Sequential(torch.nn.Linear(12, WIDTH), block)


def make_inner_in_place():
    """Changes what nobody else has."""
    block = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(inplace=True), torch.nn.Linear(WIDTH, 3))
    return torch.nn.Sequential(torch.nn.Linear(12, WIDTH), block)


class Scaled(torch.nn.Module):
    def forward(self, x, *, scale):
        return scale * x


def make_keyword():
    return torch.nn.Sequential(torch.nn.Linear(12, WIDTH), Scaled(), torch.nn.Linear(WIDTH, 3))


def make_of_depth(*, depth):
    return torch.nn.Sequential(*(torch.nn.Linear(12, 12) for _ in range(depth)))


def make_unfit():
    return torch.nn.Sequential(torch.nn.Linear(12, WIDTH), torch.nn.Linear(12, 3))


def make_with_dropout():
    model = make_model()
    model[1], model[5] = torch.nn.Dropout(0.5), torch.nn.Dropout(0.25)
    return model


class Noise(torch.nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


def make_with_noise():
    model = make_model()
    model[1] = Noise()
    return model


def make_branch():
    class Branch(torch.nn.Module):
        pass

    return Branch()


def make_batch(rows):
    return torch.randn(rows, 12), torch.randint(3, (rows,))


def loss(output, target):
    return torch.nn.functional.cross_entropy(output, target)
