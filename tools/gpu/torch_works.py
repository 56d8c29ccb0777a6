"""What torch_step.py times: models of PyTorch, and how each work is prepared and timed.

A function that prepares does all that is to happen before the time counts, such as compiling, and
returns one that times and yields answers.
"""

import argparse
import contextlib
import gc
import pathlib
import statistics
import sys
import time

import torch
import works
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/peers"))
import models  # noqa: E402

# Of torch.compile; None for eager execution.
COMPILE_MODES = {"compiled": "default", "compiled-cudnn": "default", "eager": None,
                 "cuda-graphs": "reduce-overhead"}
ATTENTION_BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
ROUNDS = 3
_WARM_UP, _RETRIES = 3, 4
_VOCABULARY_TILE = 64  # PyTorch's products are faster with a vocabulary that it divides


# ---- Models.

class Cache:
    """Keys and values of the positions so far, for one more."""

    def __init__(self, heads, positions, head_size):
        self.keys, self.values = (torch.zeros(1, heads, positions, head_size) for _ in range(2))

    def add(self, position, key, value):
        self.keys.index_copy_(2, position, key.to(self.keys.dtype))
        self.values.index_copy_(2, position, value.to(self.values.dtype))
        return self.keys, self.values


class Attention(nn.Module):
    """Causal attention of heads that may share keys and values, and with a base turn by position."""

    def __init__(self, model, rotary_base=None):
        super().__init__()
        self.heads, self.kv_heads = model.heads, model.kv_heads
        self.head_size = model.width // model.heads
        packed = (model.heads + 2 * model.kv_heads) * self.head_size
        is_biased = rotary_base is None
        self.qkv = nn.Linear(model.width, packed, bias=is_biased)
        self.out = nn.Linear(model.width, model.width, bias=is_biased)
        self.turns = rotary_base is not None
        if self.turns:
            rates = rotary_base ** (-torch.arange(0, self.head_size, 2) / self.head_size)
            angles = torch.outer(torch.arange(model.context), rates)
            self.register_buffer("cosines", angles.cos(), persistent=False)
            self.register_buffer("sines", angles.sin(), persistent=False)

    def turned(self, x):
        first, second = x.chunk(2, dim=-1)
        cosines, sines = self.cosines[:x.shape[2]], self.sines[:x.shape[2]]
        return torch.cat((first * cosines - second * sines, second * cosines + first * sines),
                         dim=-1).type_as(x)

    def forward(self, x, cache=None, position=None, mask=None):
        batch, positions, width = x.shape
        heads = self.qkv(x).view(batch, positions, -1, self.head_size).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.turns:
            q, k = self.turned(q), self.turned(k)
        if cache is not None:
            k, v = cache.add(position, k, v)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=cache is None,
                                                    enable_gqa=self.heads != self.kv_heads)
        return self.out(y.transpose(1, 2).reshape(batch, positions, width))


class Gpt2Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(model.width) for _ in range(2))
        self.attention = Attention(model)
        self.up = nn.Linear(model.width, 4 * model.width)
        self.down = nn.Linear(4 * model.width, model.width)

    def forward(self, x, *cached):
        x = x + self.attention(self.norms[0](x), *cached)
        return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(model.width, eps=1e-5) for _ in range(2))
        self.attention = Attention(model, rotary_base=10000.0)
        self.gate_up = nn.Linear(model.width, 2 * model.hidden, bias=False)
        self.down = nn.Linear(model.hidden, model.width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Gpt2(nn.Module):
    def __init__(self, model):
        super().__init__()
        vocabulary = -(-model.vocabulary // _VOCABULARY_TILE) * _VOCABULARY_TILE
        self.tokens = nn.Embedding(vocabulary, model.width)
        self.positions = nn.Embedding(model.context, model.width)
        self.blocks = nn.ModuleList(Gpt2Block(model) for _ in range(model.blocks))
        self.norm = nn.LayerNorm(model.width)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.logits(x)

    def logits(self, x):
        return functional.linear(self.norm(x), self.tokens.weight)

    def next_token(self, token, position, caches):
        """The likeliest token after the one at a position; all are tensors on the device."""
        x = self.tokens(token) + self.positions(position)
        numbers = torch.arange(caches[0].keys.shape[2], device=position.device)
        mask = (numbers <= position)[None, None, None]
        for block, cache in zip(self.blocks, caches):
            x = block(x, cache, position, mask)
        return self.logits(x).argmax(dim=-1)


class Llama(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.tokens = nn.Embedding(model.vocabulary, model.width)
        self.blocks = nn.ModuleList(LlamaBlock(model) for _ in range(model.blocks))
        self.norm = nn.RMSNorm(model.width, eps=1e-5)
        self.head = nn.Linear(model.width, model.vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ResNetBlock(nn.Module):
    def __init__(self, inputs, outputs, stride, is_bottleneck):
        super().__init__()
        inner = outputs // 4
        layers = ((*models.conv_norm(inputs, inner, 1, 1), nn.ReLU(),
                   *models.conv_norm(inner, inner, 3, stride), nn.ReLU(),
                   *models.conv_norm(inner, outputs, 1, 1)) if is_bottleneck else
                  (*models.conv_norm(inputs, outputs, 3, stride), nn.ReLU(),
                   *models.conv_norm(outputs, outputs, 3, 1)))
        is_plain = stride == 1 and inputs == outputs
        self.inner = nn.Sequential(*layers)
        self.around = nn.Sequential(*(() if is_plain else models.conv_norm(inputs, outputs, 1, stride)))

    def forward(self, x):
        return torch.relu(self.inner(x) + self.around(x))


def resnet_and_batch(net):
    stem = (models.conv_norm(3, net.stem, 3, 1) if net.is_small else
            models.conv_norm(3, net.stem, 7, 2))
    pool = () if net.is_small else (nn.MaxPool2d(3, 2, 1),)
    blocks = [ResNetBlock(*extents, net.is_bottleneck) for extents in net.block_extents()]
    model = nn.Sequential(*stem, nn.ReLU(), *pool, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(net.outputs[-1], net.classes))
    images = torch.randn(net.batch, 3, net.extent, net.extent)
    return (model.to(memory_format=torch.channels_last),
            images.to(memory_format=torch.channels_last), torch.randint(net.classes, (net.batch,)))


# ---- Times.

def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def ms_of(call, calls, device):
    """Milliseconds of one of `calls` in a row: the median of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        wait(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait(device)
        rounds.append((time.perf_counter() - start) / calls * 1e3)
    return statistics.median(rounds)


def warm_up(step):
    """Compiles, and records what is to be replayed."""
    for left in reversed(range(_WARM_UP + _RETRIES)):
        try:
            step()
        except torch.OutOfMemoryError:  # for a moment, others that prepare have the memory
            if left == 0:
                raise
            gc.collect()
            torch.cuda.empty_cache()
            time.sleep(2)


def network_and_batch(network):
    model = nn.Sequential(*models.default(argparse.Namespace(layers=network.layers,
                                                             width=network.width)).layers)
    return (model, torch.randn(network.batch, models.FEATURES),
            torch.randint(models.CLASSES, (network.batch,)))


def transformer_and_batch(transformer):
    model = (Llama if transformer.hidden else Gpt2)(transformer)
    ids = torch.randint(transformer.vocabulary, (transformer.batch, transformer.context + 1))
    return model, ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def prepare_training(what, sizes, form, precision, device, make=None):
    """`make`: what makes the model and its batch, unless the kind of `sizes` says that."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    is_transformer = isinstance(sizes, works.Transformer)
    makers = {works.Transformer: transformer_and_batch, works.ConvNet: resnet_and_batch,
              works.Network: network_and_batch}
    with torch.device(device):
        model, x, targets = make() if make else makers[type(sizes)](sizes)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, weight_decay=0.01, fused=True)

    def loss_of(x, targets):
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            return functional.cross_entropy(model(x).flatten(0, -2).float(), targets.flatten())

    mode = COMPILE_MODES[form]
    compute = loss_of if mode is None else torch.compile(loss_of, mode=mode)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        compute(x, targets).backward()
        if is_transformer and not make:
            nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    # It is compiled for the backend that may be used then.
    is_cudnn = form == "compiled-cudnn"
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if is_cudnn else contextlib.nullcontext():
        warm_up(step)

    def measure():
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if is_cudnn else contextlib.nullcontext():
            step()  # its memory is taken anew
            found = {"what": works.step_of(what, precision), "ms": ms_of(step, sizes.steps, device)}
        if is_transformer:
            found["tokens_per_second"] = sizes.tokens / found["ms"] * 1e3
        if isinstance(sizes, works.ConvNet):
            found["images_per_second"] = sizes.batch / found["ms"] * 1e3
        if device == "cuda":
            found["peak_bytes"] = torch.cuda.max_memory_allocated()
        yield found

    return measure


class Logits(nn.Module):
    """The logits of a model of the library transformers."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, ids):
        return self.network(input_ids=ids, use_cache=False).logits


def adapters_and_batch(sizes, device):
    """A Llama of the library transformers, frozen in bfloat16, with PEFT's adapters."""
    import peft
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.width, intermediate_size=sizes.hidden,
        num_hidden_layers=sizes.blocks, num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads, max_position_embeddings=sizes.context)
    with torch.device(device):
        network = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        rank = works.ADAPTER_RANK
        network = peft.get_peft_model(network, peft.LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
        ids = torch.randint(sizes.vocabulary, (sizes.batch, sizes.context + 1))
    return Logits(network), ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def prepare_attention(shapes, calls, form, device):
    def times(shape):
        q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
                   for _ in range(3))

        def forward():
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        with sdpa_kernel(ATTENTION_BACKENDS[form]):
            y = forward()
            dy = torch.randn_like(y)

            def backward():
                torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)

            backward()
            for direction, call in (("forward", forward), ("backward", backward)):
                yield {"what": works.attention_of(shape, direction),
                       "ms": ms_of(call, calls, device)}

    def measure():
        for shape in shapes:
            yield from times(shape)

    return measure


def prepare_generation(generation, form, device):
    if form == "hugging-face":
        return prepare_hugging_face(generation, device)
    sizes = generation.model
    with torch.device(device), torch.no_grad():
        model = Gpt2(sizes).to(torch.bfloat16)
        caches = [Cache(sizes.heads, generation.prompt + generation.tokens,
                        sizes.width // sizes.heads) for _ in range(sizes.blocks)]
        for cache in caches:
            cache.keys, cache.values = cache.keys.bfloat16(), cache.values.bfloat16()
        token, position = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)

    def next_token():
        with torch.no_grad():
            token.copy_(model.next_token(token, position, caches))
            position.add_(1)

    # The whole step is one, with the token and its position where they are.
    issue = torch.compile(next_token) if form == "compiled" else next_token
    for _ in range(3):
        issue()
    if form != "eager" and device == "cuda":
        wait(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            issue()
        issue = graph.replay

    def generate():
        position.fill_(generation.prompt)
        for _ in range(generation.tokens):
            issue()
            token.item()  # the host knows each, as it must to see where a text ends

    def measure(_used=(model, caches)):  # a graph does not keep what its kernels read
        yield {"what": works.TOKEN, "ms": ms_of(generate, 1, device) / generation.tokens}

    return measure


def prepare_hugging_face(generation, device):
    import transformers

    sizes = generation.model
    config = transformers.GPT2Config(
        vocab_size=sizes.vocabulary, n_positions=sizes.context, n_embd=sizes.width,
        n_layer=sizes.blocks, n_head=sizes.heads, bos_token_id=None, eos_token_id=None)
    with torch.device(device):
        model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16).eval()
        ids = torch.randint(sizes.vocabulary, (1, generation.prompt))
        mask = torch.ones_like(ids)

    def generate(tokens=generation.tokens):
        with torch.no_grad():
            return model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=tokens,
                                  min_new_tokens=tokens, pad_token_id=0)

    generate(4)

    def measure():
        yield {"what": works.TOKEN, "ms": ms_of(generate, 1, device) / generation.tokens}

    return measure


def prepare(work, form, precision, sizes, device):
    """Prepares a work in a form (torch_step.FORMS)."""
    torch.manual_seed(1)
    if work == "attention":
        return prepare_attention(sizes.attention, sizes.visits, form, device)
    if work == "generate":
        return prepare_generation(sizes.generation, form, device)
    if work == "adapters":
        return prepare_training(works.ADAPTERS, sizes.adapters, form, precision, device,
                                lambda: adapters_and_batch(sizes.adapters, device))
    what = {"network": works.NETWORK, "gpt2": works.GPT2, "llama": works.LLAMA,
            "resnet50": works.RESNET50, "resnet18": works.RESNET18}[work]
    return prepare_training(what, getattr(sizes, work), form, precision, device)
