"""The models that both sides train, as PyTorch has them: chains of layers that a pipeline may cut between."""

import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional

FEATURES, CLASSES = 784, 10


class Model:
    """A chain of layers with the shapes of its data."""

    def __init__(self, layers, make_batch, loss):
        self.layers, self.make_batch, self.loss = layers, make_batch, loss
        self.parameters = sum(p.numel() for p in set(p for layer in layers for p in layer.parameters()))


class Block(nn.Module):
    """x + gelu(linear(layer_norm(x)))"""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + functional.gelu(self.linear(self.norm(x)), approximate="tanh")


class First(nn.Linear):
    def forward(self, x):
        return functional.gelu(super().forward(x), approximate="tanh")


def default(options):
    """DefaultNetwork() of engine/models/model.h."""
    layers, width = options.layers or 20, options.width or 2304
    blocks = [Block(width) for _ in range(layers - 2)]
    model = Model([First(FEATURES, width), *blocks, nn.Linear(width, CLASSES)],
                  lambda rows: (torch.randn(rows, FEATURES), torch.randint(CLASSES, (rows,))),
                  functional.cross_entropy)
    expected = (FEATURES + 1) * width + (layers - 2) * (width + 3) * width + (width + 1) * CLASSES
    assert model.parameters == expected, (model.parameters, expected)
    return model


def loss_of_tokens(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt2(options):
    """GPT-2 124M of the library transformers, without dropout. A pipeline's head has a matrix of its own: PyTorch does not sum
    gradients of parameters that two stages share."""
    import transformers

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "torch"))
    from stagecoach_torch.layers import layers_of

    is_pipeline = options.work not in ("one", "ddp")
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, n_positions=options.context,
                                     tie_word_embeddings=not is_pipeline)
    network = transformers.GPT2LMHeadModel(config)

    def make_batch(rows):
        ids = torch.randint(config.vocab_size, (rows, options.context + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    model = Model([layer for _, layer in layers_of(network)], make_batch, loss_of_tokens)
    if is_pipeline:
        model.parameters -= config.vocab_size * config.n_embd
    expected = 124_439_808 - (1024 - options.context) * config.n_embd
    assert model.parameters == expected, (model.parameters, expected)
    return model


class Logits(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, ids):
        return self.network(input_ids=ids, use_cache=False).logits


def qwen_lora(options):
    """Qwen 2.5 0.5B of the library transformers, frozen, with PEFT's adapters of rank 16 on all matrices of its blocks."""
    import peft
    import transformers

    import contests

    config = transformers.Qwen2Config(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                                      num_attention_heads=14, num_key_value_heads=2, rope_theta=1e6, tie_word_embeddings=True)
    network = transformers.Qwen2ForCausalLM(config)
    rank = contests.LORA_RANK
    network = peft.get_peft_model(network, peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))

    def make_batch(rows):
        ids = torch.randint(config.vocab_size, (rows, options.context + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    model = Model([Logits(network)], make_batch, loss_of_tokens)
    expected = 494_032_768 + 24 * rank * (2 * (896 + 896) + 2 * (896 + 128) + 3 * (896 + 4864))
    assert model.parameters == expected, (model.parameters, expected)
    return model


def conv_norm(inputs, outputs, kernel, stride):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)


class ConvBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.inner = nn.Sequential(*conv_norm(inputs, outputs, 3, stride), nn.ReLU(), *conv_norm(outputs, outputs, 3, 1))
        self.around = nn.Sequential(*(conv_norm(inputs, outputs, 1, stride) if stride != 1 else ()))

    def forward(self, x):
        return torch.relu(self.inner(x) + self.around(x))


def resnet18_small(options):
    """ResNet-18 for images of 32 x 32."""
    layers = [*conv_norm(3, 64, 3, 1), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers.append(ConvBlock(inputs, outputs, stride))
        inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)]
    memory = torch.channels_last if options.channels_last else torch.contiguous_format
    model = Model([layer.to(memory_format=memory) for layer in layers],
                  lambda rows: (torch.randn(rows, 3, 32, 32).to(memory_format=memory), torch.randint(CLASSES, (rows,))),
                  functional.cross_entropy)
    assert model.parameters == 11_173_962, model.parameters
    return model


MODELS = {"default": default, "gpt2-124m": gpt2, "resnet18-small": resnet18_small, "qwen2.5-0.5b-lora": qwen_lora}
