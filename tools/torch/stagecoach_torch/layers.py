"""Models as chains of layers that a plan may cut between."""

import inspect

import torch

from stagecoach_torch.errors import UserError


class _Gpt2Embedding(torch.nn.Module):
    def __init__(self, gpt):
        super().__init__()
        self.wte, self.wpe, self.drop = gpt.wte, gpt.wpe, gpt.drop

    def forward(self, ids):
        return self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))


class _Block(torch.nn.Module):
    """A transformer's block of Hugging Face: of a tuple, the activation."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        y = self.block(x)
        return y[0] if isinstance(y, tuple) else y


class _LlamaBlock(torch.nn.Module):
    """The angles have no parameters, so each block computes its own."""

    def __init__(self, block, rotary):
        super().__init__()
        self.block, self.rotary = block, rotary

    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device)[None]
        y = self.block(x, position_embeddings=self.rotary(x, positions))
        return y[0] if isinstance(y, tuple) else y


def _gpt2_layers(model):
    gpt = model.transformer
    blocks = [(f"transformer.h.{i}", _Block(block)) for i, block in enumerate(gpt.h)]
    return [("transformer.wte", _Gpt2Embedding(gpt)), *blocks, ("transformer.ln_f", gpt.ln_f), ("lm_head", model.lm_head)]


def _llama_layers(model):
    llama = model.model
    blocks = [(f"model.layers.{i}", _LlamaBlock(block, llama.rotary_emb)) for i, block in enumerate(llama.layers)]
    return [("model.embed_tokens", llama.embed_tokens), *blocks, ("model.norm", llama.norm), ("lm_head", model.lm_head)]


_HUGGING_FACE = {"GPT2LMHeadModel": _gpt2_layers, "LlamaForCausalLM": _llama_layers}


def layers_of(model):
    """Returns [(name, module)] in order; what goes through all of them is what `model` computes."""
    kind = type(model).__name__
    if kind in _HUGGING_FACE:
        if model.config._attn_implementation != "sdpa":
            raise UserError(f"{kind} needs attn_implementation=\"sdpa\": other kinds are only causal with a mask")
        layers = _HUGGING_FACE[kind](model)
    elif isinstance(model, torch.nn.Sequential):
        layers = list(model.named_children())
    else:
        known = ", ".join(_HUGGING_FACE)
        raise UserError(f"the model is a {kind}; a plan cuts a torch.nn.Sequential between its children, or {known}")
    if not layers:
        raise UserError("the model has no layers")
    for name, module in layers:
        try:
            inspect.signature(module.forward).bind(None)
        except TypeError as error:
            raise UserError(f"layer {name}, a {type(module).__name__}, cannot be called with one tensor: {error}; a plan hands "
                            "each layer what the one before returns, and no more") from None
        except ValueError:  # a compiled one without a signature
            pass
    return layers


def changes_in_place(name, module):
    """What to say of a layer that changes its input."""
    culprits = [own for own, child in module.named_modules() if getattr(child, "inplace", False)]
    remedy = f"make {culprits[0] or 'it'} with inplace=False" if culprits else "let it work on a copy"
    return UserError(f"layer {name} changes its input in place, which another stage has too: {remedy}")


def shared_parameters(layers):
    """Returns (parameter, layer, other layer) by name for each parameter that two layers share."""
    owners, shared = {}, []
    for name, module in layers:
        for own, parameter in module.named_parameters():
            first = owners.setdefault(parameter, name)
            if first != name:
                shared.append((own, first, name))
    return shared
