"""What is timed both in Stagecoach and in PyTorch: names and sizes for the two sides."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Network:
    """The default network (engine/model/model.h)."""

    layers: int = 20
    width: int = 2304
    batch: int = 4096
    steps: int = 20  # of one round, in PyTorch


@dataclasses.dataclass(frozen=True)
class Transformer:
    """A GPT-2, or with `hidden` a Llama, and the samples of its step."""

    model: str  # as --model has it
    blocks: int
    width: int
    heads: int
    kv_heads: int
    hidden: int  # of Llama's MLP; 0: it is a GPT-2
    context: int
    vocabulary: int
    batch: int
    steps: int = 4

    @property
    def tokens(self):
        return self.batch * self.context


def _llama(batch, steps=4, **extents):
    model = "llama:" + ",".join(f"{name}={value}" for name, value in extents.items())
    return Transformer(model=model, batch=batch, steps=steps, **extents)


@dataclasses.dataclass(frozen=True)
class Generation:
    """Tokens that follow a prompt, each the likeliest."""

    model: Transformer
    prompt: int = 64
    tokens: int = 256


@dataclasses.dataclass(frozen=True)
class Works:
    """`attention` has (samples, heads, positions, head size)."""

    network: Network
    gpt2: Transformer
    llama: Transformer
    attention: tuple
    generation: Generation
    visits: int = 10  # calls of attention in a row, in PyTorch
    bench_steps: tuple = (3, 10)  # of `stagecoach bench`: before those that count, and these


_GPT2 = Transformer(model="gpt2-124m", blocks=12, width=768, heads=12, kv_heads=12, hidden=0,
                    context=1024, vocabulary=50257, batch=64)
FULL = Works(
    network=Network(), gpt2=_GPT2,
    llama=_llama(blocks=22, width=2048, heads=32, kv_heads=4, hidden=5632, context=2048,
                 vocabulary=32000, batch=8),
    attention=((16, 12, 1024, 64), (4, 32, 4096, 128)), generation=Generation(_GPT2))
# Only to run every line.
_SMALL_GPT2 = Transformer(
    model="gpt2:blocks=1,width=16,heads=2,context=32,vocabulary=300", blocks=1, width=16, heads=2,
    kv_heads=2, hidden=0, context=32, vocabulary=300, batch=16, steps=2)
SMALL = Works(
    network=Network(layers=4, width=32, batch=16, steps=2), gpt2=_SMALL_GPT2,
    llama=_llama(blocks=1, width=32, heads=4, kv_heads=2, hidden=32, context=8, vocabulary=50,
                 batch=2, steps=2),
    attention=((1, 2, 9, 64),), generation=Generation(_SMALL_GPT2, prompt=8, tokens=4), visits=2,
    bench_steps=(1, 2))


def works(small):
    return SMALL if small else FULL


# Names of figures, and of the answers of torch_step.py.
def step_of(what, precision):
    return f"{what}, {precision}"


NETWORK, GPT2, LLAMA, TOKEN = "default network", "GPT-2 124M", "Llama 1.1B", "GPT-2 124M, a token"


def attention_of(shape, direction):
    return f"attention {' x '.join(map(str, shape))}, {direction}"
