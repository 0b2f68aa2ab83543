"""A module of torch with its linear layers in e4m3, by torch's own product of scaled matrices."""

import torch
from torch import nn

LARGEST = torch.finfo(torch.float8_e4m3fn).max
MULTIPLE = 16  # that torch._scaled_mm needs of both dimensions


class Fp8Linear(nn.Module):
    """A linear layer with one scale for its weights and one for its rows, of which `largest` is the largest number."""

    def __init__(self, linear, largest):
        super().__init__()
        scale = linear.weight.abs().amax().float() / LARGEST
        self.register_buffer("weight", (linear.weight / scale).to(torch.float8_e4m3fn))
        self.register_buffer("weight_scale", scale)
        self.register_buffer("scale", largest.float() / LARGEST)
        self.bias = linear.bias

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        codes = (rows / self.scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        result = torch._scaled_mm(
            codes, self.weight.t(), scale_a=self.scale, scale_b=self.weight_scale, bias=self.bias, out_dtype=x.dtype
        )
        return result.reshape(*x.shape[:-1], -1)


def in_fp8(module, x):
    """The module, changed: its linear layers with rows of tokens, and dimensions that torch multiplies, are in e4m3. The
    largest numbers are those of `x`."""
    largest, hooks = {}, []

    def note(layer, given):
        tokens = given[0]
        if tokens.dim() > 2 and all(n % MULTIPLE == 0 for n in layer.weight.shape):
            largest[layer] = tokens.abs().amax()

    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            hooks.append(layer.register_forward_pre_hook(note))
    module(x)
    for hook in hooks:
        hook.remove()
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child in largest:
                setattr(parent, name, Fp8Linear(child, largest[child]))
    return module
