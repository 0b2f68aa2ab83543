"""A ResNet in int8 by torch's own quantised operations on CUDA, which are cuDNN's."""

import torch
from torch.nn.utils.fusion import fuse_conv_bn_eval

from peers import CHANNELS_LAST, convs_of

LARGEST = 127.0


class Int8ResNet:
    """Batch norms folded; a scale for each tensor, weights included, which is all that these operations take; zero points 0.
    The scales are those of the largest values on `images`, normalised. The last layer is in fp16."""

    def __init__(self, module, images):
        module = module.cuda()
        self.input = _scale(images)
        self.stem = _Conv(module.conv1, module.bn1)
        layers = (module.layer1, module.layer2, module.layer3, module.layer4)
        self.blocks = [_Block(block) for layer in layers for block in layer]
        self.weight = module.fc.weight.detach().half().t()
        self.bias = module.fc.bias.detach().half()
        x = torch.nn.functional.max_pool2d(self.stem.calibrated(images, relu=True), 3, 2, 1)
        for block in self.blocks:
            x = block.calibrated(x)
        module.cpu()

    def __call__(self, x):
        x = torch.quantize_per_tensor(x.float(), self.input, 0, torch.qint8).contiguous(memory_format=CHANNELS_LAST)
        x = torch.nn.functional.max_pool2d(self.stem(x, relu=True), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return torch.addmm(self.bias, x.dequantize().mean((2, 3)).half(), self.weight)


class _Block:
    """A residual block."""

    def __init__(self, block):
        self.convs = [_Conv(conv, norm) for conv, norm in convs_of(block)]
        self.shortcut = _Conv(*block.downsample) if block.downsample is not None else None

    def calibrated(self, x):
        shortcut = self.shortcut.calibrated(x, relu=False) if self.shortcut else x
        for conv in self.convs:
            x = conv.calibrated(x, relu=conv is not self.convs[-1])
        x = torch.relu(x + shortcut)
        self.scale = _scale(x)
        return x

    def __call__(self, x):
        shortcut = self.shortcut(x, relu=False) if self.shortcut else x
        for conv in self.convs:
            x = conv(x, relu=conv is not self.convs[-1])
        return torch.ops.quantized.add_relu(x, shortcut, self.scale, 0)


class _Conv:
    """A convolution with its batch norm inside."""

    def __init__(self, conv, norm):
        self.float = fuse_conv_bn_eval(conv, norm)
        weight = self.float.weight.detach()
        weight = torch.quantize_per_tensor(weight, _scale(weight), 0, torch.qint8)
        self.packed = torch.ops.quantized.conv2d_prepack(
            weight.contiguous(memory_format=CHANNELS_LAST), self.float.bias.detach(), conv.stride, conv.padding,
            conv.dilation, conv.groups,
        )  # fmt: skip

    def calibrated(self, x, relu):
        x = self.float(x)
        x = torch.relu(x) if relu else x
        self.scale = _scale(x)
        return x

    def __call__(self, x, relu):
        conv = torch.ops.quantized.conv2d_relu if relu else torch.ops.quantized.conv2d
        return conv(x, self.packed, self.scale, 0)


def _scale(x):
    return float(x.abs().amax()) / LARGEST
