"""What is timed both in Stagecoach and in PyTorch: names and sizes for the two sides."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Network:
    """The default network (engine/models/model.h)."""

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
class ConvNet:
    """A ResNet (He et al. 2015), and the images of its step."""

    model: str  # as --model has it; "": of these extents, by a file
    blocks: tuple  # of each group
    outputs: tuple  # channels, of each group
    is_bottleneck: bool
    stem: int  # channels
    extent: int  # pixels along both axes; up to 32 the first layer has a kernel of 3
    classes: int
    batch: int
    steps: int = 4

    @property
    def is_small(self):
        return self.extent <= 32

    @property
    def data(self):
        return f"synthetic:10x{3 * self.extent ** 2}x{self.classes}"

    def block_extents(self):
        """(inputs, outputs, stride) of every block, in order."""
        inputs = self.stem
        for group, (blocks, outputs) in enumerate(zip(self.blocks, self.outputs)):
            for block in range(blocks):
                yield inputs, outputs, 2 if group > 0 and block == 0 else 1
                inputs = outputs

    def model_file(self):
        """The same as a model file, for one whose blocks are no bottlenecks."""
        def conv(outputs, kernel, stride):
            return (f'{{ type = "conv2d", outputs = {outputs}, kernel = {kernel}, stride = {stride}, '
                    f'padding = {kernel // 2}, bias = false }}, {{ type = "batch_norm" }}')

        lines = [f'input = [3, {self.extent}, {self.extent}]', "layer = [",
                 f'  {conv(self.stem, 3, 1)}, {{ type = "relu" }},']
        for inputs, outputs, stride in self.block_extents():
            around = (f', shortcut = [{conv(outputs, 1, stride)}]'
                      if stride != 1 or inputs != outputs else "")
            lines.append(f'  {{ type = "residual", relu = true, layers = [{conv(outputs, 3, stride)}, '
                         f'{{ type = "relu" }}, {conv(outputs, 3, 1)}]{around} }},')
        lines += ['  { type = "global_avg_pool" }, { type = "linear", outputs = "classes" }', "]"]
        return "\n".join(lines) + "\n"


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
    adapters: Transformer  # a Llama that is frozen, with adapters of ADAPTER_RANK
    attention: tuple
    generation: Generation
    resnet50: ConvNet
    resnet18: ConvNet
    visits: int = 10  # calls of attention in a row, in PyTorch
    bench_steps: tuple = (3, 10)  # of `stagecoach bench`: before those that count, and these


_GPT2 = Transformer(model="gpt2-124m", blocks=12, width=768, heads=12, kv_heads=12, hidden=0,
                    context=1024, vocabulary=50257, batch=64)
FULL = Works(
    network=Network(), gpt2=_GPT2,
    llama=_llama(blocks=22, width=2048, heads=32, kv_heads=4, hidden=5632, context=2048,
                 vocabulary=32000, batch=8),
    # Some blocks of Llama 3 8B.
    adapters=_llama(blocks=8, width=4096, heads=32, kv_heads=8, hidden=14336, context=2048,
                    vocabulary=32000, batch=4),
    attention=((16, 12, 1024, 64), (4, 32, 4096, 128)), generation=Generation(_GPT2),
    resnet50=ConvNet(model="resnet50", blocks=(3, 4, 6, 3), outputs=(256, 512, 1024, 2048),
                     is_bottleneck=True, stem=64, extent=224, classes=1000, batch=256),
    resnet18=ConvNet(model="resnet18-small", blocks=(2, 2, 2, 2), outputs=(64, 128, 256, 512),
                     is_bottleneck=False, stem=64, extent=32, classes=10, batch=512, steps=10))
# Only to run every line.
_SMALL_GPT2 = Transformer(
    model="gpt2:blocks=1,width=16,heads=2,context=32,vocabulary=300", blocks=1, width=16, heads=2,
    kv_heads=2, hidden=0, context=32, vocabulary=300, batch=16, steps=2)
_SMALL_RESNET = ConvNet(model="", blocks=(1, 1), outputs=(8, 16), is_bottleneck=False, stem=8,
                        extent=4, classes=3, batch=8, steps=2)
SMALL = Works(
    network=Network(layers=4, width=32, batch=16, steps=2), gpt2=_SMALL_GPT2,
    llama=_llama(blocks=1, width=32, heads=4, kv_heads=2, hidden=32, context=8, vocabulary=50,
                 batch=2, steps=2),
    adapters=_llama(blocks=1, width=64, heads=2, kv_heads=1, hidden=64, context=8, vocabulary=50,
                    batch=2, steps=2),
    attention=((1, 2, 9, 64),), generation=Generation(_SMALL_GPT2, prompt=8, tokens=4),
    resnet50=_SMALL_RESNET, resnet18=_SMALL_RESNET, visits=2,
    bench_steps=(1, 2))


def works(small):
    return SMALL if small else FULL


# Names of figures, and of the answers of torch_step.py.
def step_of(what, precision):
    return f"{what}, {precision}"


NETWORK, GPT2, LLAMA, TOKEN = "default network", "GPT-2 124M", "Llama 1.1B", "GPT-2 124M, a token"
ADAPTERS, ADAPTER_RANK = "adapters of 8 blocks of Llama 3 8B", 16
RESNET50, RESNET18 = "ResNet-50", "ResNet-18 of small images"


def attention_of(shape, direction):
    return f"attention {' x '.join(map(str, shape))}, {direction}"
