"""Where a torch module and a trefoil graph can be compared: behind each convolution with what is fused into it.

`points` lists them in order of execution; `trefoil_node` has all that is known here of trefoil's node names.
"""

from dataclasses import dataclass

import torch
from torch import nn

FIRST_CONVS = 10


@dataclass(frozen=True)
class Point:
    """One value in the network that both sides have."""

    module: str  # the torch module whose output it is
    call: int  # which of the module's calls in one forward: torchvision's blocks use one ReLU several times
    node: str  # trefoil's node
    landmark: bool  # the stem or the end of a block


def trefoil_node(module, call, kind):
    """trefoil's name for the value that a torch module returns in one of its calls.

    Mostly the module's own name. torchvision uses a block's ReLU several times, so trefoil numbers them: `relu1`,
    `relu2`, … (`relu` of the network itself is used once). timm's batch norms hold their activation and its blocks
    their residual sum: `.act` and `.add`. GoogLeNet's convolutions end in a ReLU that is no module: `.relu`.
    """
    match kind:
        case "block relu":
            return f"{module}{call + 1}"
        case "norm with activation":
            return f"{module}.act"
        case "block with sum":
            return f"{module}.add"
        case "convolution with relu":
            return f"{module}.relu"
        case "plain":
            return module
    raise ValueError(kind)


def points(module):
    """The points of a ResNet, a GoogLeNet or an EfficientNet."""
    kinds = {"layer1": _resnet, "inception3a": _googlenet, "blocks": _efficientnet}
    found = next(kind for attribute, kind in kinds.items() if hasattr(module, attribute))(module)
    modules = dict(module.named_modules())
    for point in found:
        assert point.module in modules, f"no module {point.module}"
    assert len({point.node for point in found}) == len(found), "a node is named twice"
    return found


def shortened(found):
    """The stem, the ends of all blocks, and the first ten convolutions."""
    return [point for index, point in enumerate(found) if index < FIRST_CONVS or point.landmark]


@torch.no_grad()
def capture(module, found, x):
    """Runs `module` on `x`; the value at each point, fp32, as [N, H, W, C] in numpy, by node."""
    wanted = {(point.module, point.call): point.node for point in found}
    calls, values, hooks = {}, {}, []

    def hook(name):
        def store(_module, _inputs, output):
            call = calls[name] = calls.get(name, -1) + 1
            node = wanted.get((name, call))
            if node is not None:
                values[node] = output.detach().float().permute(0, 2, 3, 1).contiguous().cpu().numpy()

        return store

    modules = dict(module.named_modules())
    for name in {point.module for point in found}:
        hooks.append(modules[name].register_forward_hook(hook(name)))
    try:
        module(x)
    finally:
        for handle in hooks:
            handle.remove()
    missing = [point.node for point in found if point.node not in values]
    assert not missing, f"never computed: {missing}"
    return values


def _point(module, kind, call=0, landmark=False):
    return Point(module, call, trefoil_node(module, call, kind), landmark)


def _resnet(module):
    found = [_point("relu", "plain", landmark=True)]
    for layer in ("layer1", "layer2", "layer3", "layer4"):
        for index, block in enumerate(getattr(module, layer)):
            path = f"{layer}.{index}"
            last = 2 if hasattr(block, "conv3") else 1
            found += [_point(f"{path}.relu", "block relu", call) for call in range(last)]
            if block.downsample is not None:
                found.append(_point(f"{path}.downsample.1", "plain"))
            found.append(_point(f"{path}.relu", "block relu", last, landmark=True))
    return found


def _googlenet(module):
    found = [_point(name, "convolution with relu", landmark=name == "conv1") for name in ("conv1", "conv2", "conv3")]
    for name, block in module.named_children():
        if name.startswith("inception"):
            convs = [path for path, child in block.named_modules() if hasattr(child, "conv")]
            found += [_point(f"{name}.{path}", "convolution with relu") for path in convs]
            found.append(_point(name, "plain", landmark=True))
    return found


def _efficientnet(module):
    found = [_point("bn1", "norm with activation", landmark=True)]
    for stage, blocks in enumerate(module.blocks):
        for index, block in enumerate(blocks):
            path = f"blocks.{stage}.{index}"
            norms = [f"{path}.{name}" for name, child in block.named_children() if isinstance(child, nn.BatchNorm2d)]
            found += [_point(norm, "norm with activation") for norm in norms[:-1]]
            if block.has_skip:
                found.append(_point(path, "block with sum", landmark=True))
            else:
                found.append(_point(norms[-1], "plain", landmark=True))
    found.append(_point("bn2", "norm with activation", landmark=True))
    return found
