"""The peers: what PyTorch makes of the same model, fp16, channels last, input on the device, in one CUDA graph each."""

import copy
import statistics
import warnings

import torch
from torch.nn.utils.fusion import fuse_conv_bn_eval

CHANNELS_LAST = torch.channels_last


def peers_of(loaded, inductor=False):
    """The peers that exist for a model: name → function that makes a forward from fp16 NCHW (channels last)."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = False
    found = {"torch eager, graph": lambda: half(loaded.module)}
    if hasattr(loaded.module, "layer1"):
        found["cuDNN fused, graph"] = lambda: CudnnFused(loaded.module)
    if inductor:
        found["torch inductor, graph"] = lambda: inductor_of(loaded.module)
    return found


def half(module):
    """The module in fp16, channels last, on the GPU; the given one stays as it is."""
    return copy.deepcopy(module).eval().cuda().half().to(memory_format=CHANNELS_LAST)


def inductor_of(module):
    """torch.compile with frozen weights."""
    import torch._inductor.config as inductor_config

    inductor_config.freezing = True
    torch._dynamo.reset()
    return torch.compile(half(module))


class CudnnFused:
    """A ResNet by cuDNN's fused calls: batch norms folded in fp32, convolution + bias (+ residual) + ReLU in one."""

    def __init__(self, module):
        self.stem = _Folded(module.conv1, module.bn1)
        layers = (module.layer1, module.layer2, module.layer3, module.layer4)
        self.blocks = [_block(block) for layer in layers for block in layer]
        self.weight = module.fc.weight.detach().cuda().half().t()  # [C, classes]
        self.bias = module.fc.bias.detach().cuda().half()

    def __call__(self, x):
        x = torch.nn.functional.max_pool2d(self.stem.relu(x), 3, 2, 1)
        for convs, shortcut in self.blocks:
            residual = shortcut.plain(x) if shortcut else x
            for conv in convs[:-1]:
                x = conv.relu(x)
            x = convs[-1].add_relu(x, residual)
        return torch.addmm(self.bias, x.mean((2, 3)), self.weight)


def convs_of(block):
    """The convolutions of a residual block, each with its batch norm, but for that of the shortcut."""
    names = [("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3")]
    return [(getattr(block, conv), getattr(block, norm)) for conv, norm in names if hasattr(block, conv)]


def _block(block):
    convs = [_Folded(conv, norm) for conv, norm in convs_of(block)]
    return convs, _Folded(*block.downsample) if block.downsample is not None else None


class _Folded:
    """A convolution with its batch norm inside."""

    def __init__(self, conv, norm):
        conv = fuse_conv_bn_eval(conv, norm).cuda().half()
        self.weight = conv.weight.detach().contiguous(memory_format=CHANNELS_LAST)
        self.bias = conv.bias.detach()
        self.window = (conv.stride, conv.padding, conv.dilation, conv.groups)

    def plain(self, x):
        return torch.nn.functional.conv2d(x, self.weight, self.bias, *self.window)

    def relu(self, x):
        return torch.cudnn_convolution_relu(x, self.weight, self.bias, *self.window)

    def add_relu(self, x, residual):
        return torch.cudnn_convolution_add_relu(x, self.weight, residual, 1.0, self.bias, *self.window)


class Calls:
    """A forward on one input, called each time."""

    WARM_UP = 3

    def __init__(self, forward, x):
        self.forward, self.x = forward, x

    def run(self):
        self.result = self.forward(self.x)

    def output(self):
        """The result of one run, fp32 on the host."""
        self.run()
        return self.result.float().cpu().numpy()

    def median_ms(self, seconds, samples=15):
        """Milliseconds of one run: the median of several samples back to back, which take so many seconds in all."""
        self._run_ms(self.WARM_UP)
        runs = max(1, round(seconds * 1e3 / samples / self._run_ms(self.WARM_UP)))
        return statistics.median(self._run_ms(runs) for _ in range(samples))

    @torch.no_grad()
    def _run_ms(self, runs):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(runs):
            self.run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / runs


class Graph(Calls):
    """A forward on one input, captured in a CUDA graph."""

    @torch.no_grad()
    def __init__(self, forward, x):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(self.WARM_UP):
                forward(x)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        super().__init__(forward, x)  # the graph reads the weights in the one and the other
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = forward(x)

    def run(self):
        self.graph.replay()


def floor_ms(module, size, batch, hbm_tbps, fp16_tflops):
    """The least time an unfused run can take, each layer by itself: its tensors move through HBM once, or the tensor
    cores do its products, whichever takes longer. Batch norms, activations and residual sums are taken as fused: a
    residual costs one more read."""
    total = [0.0]

    def cost(flops, elems):
        total[0] += max(flops / (fp16_tflops * 1e12), 2 * elems / (hbm_tbps * 1e12)) * 1e3

    def conv(layer, inputs, output):
        products = output.numel() * layer.weight[0].numel()
        cost(2 * batch * products, batch * (inputs[0].numel() + output.numel()) + layer.weight.numel())

    def pool(_layer, inputs, output):
        cost(0, batch * (inputs[0].numel() + output.numel()))

    def residual(_layer, _inputs, output):
        cost(0, batch * output.numel())

    hooks = []
    for layer in module.modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            hooks.append(layer.register_forward_hook(conv))
        elif isinstance(layer, (torch.nn.MaxPool2d, torch.nn.AdaptiveAvgPool2d)):
            hooks.append(layer.register_forward_hook(pool))
        elif hasattr(layer, "downsample") or getattr(layer, "has_skip", False):
            hooks.append(layer.register_forward_hook(residual))
    with torch.no_grad():
        module(torch.zeros(1, 3, *size))
    for hook in hooks:
        hook.remove()
    return total[0]
