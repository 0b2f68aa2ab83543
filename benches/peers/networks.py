"""Networks that both sides run with the same weights: torch's module, the file or folder that trefoil opens, and rows.

Weights are random, from a seed: every affine parameter is drawn, and batch norms have the statistics of what goes through
them (`architectures.py`). Networks of ONNX files have the weights of these files; torch runs them as onnx2torch has them,
after shapes are folded into constants.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from architectures import calibrate_norms, randomise
from figures import Asked

PICTURES = 8  # whose statistics batch norms get


@dataclass
class Made:
    """A network of torch in f32 on the CPU, and how both sides are given rows."""

    module: nn.Module  # of one tensor, with one tensor as its result
    rows: object  # count -> (tensor for the module, {trefoil's port: array})
    write: object  # folder -> path of what trefoil opens
    sizes: dict  # of trefoil's free dimensions
    port: str = ""  # of trefoil's outputs, the one that is compared; the first if empty
    find: object = None  # what is compared of the module's result, if not all of it
    is_planar: bool = True  # rows are images of planes, which torch is given channels last


@dataclass(frozen=True)
class Network:
    """A network by name, and what is asked for at each number of rows."""

    name: str
    make: object  # rows -> Made
    asked: dict  # rows -> Asked
    is_f32: bool = False  # both sides in f32, torch without TF32; otherwise f16
    is_e4m3: bool = False  # trefoil's products of tokens in e4m3, and a side of torch with its linear layers in e4m3


def pictures(count, side, seed=1):
    """Patches of colours, different ones in each image, with some noise: u8 [count, side, side, 3]."""
    some = torch.Generator().manual_seed(seed)
    patches = nn.functional.interpolate(torch.rand(count, 3, 5, 5, generator=some), (side, side)) * 0.9
    noise = torch.rand(count, 3, side, side, generator=some) * 0.1
    return ((patches + noise) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def images(side, mean=(0.0,) * 3, std=(1.0,) * 3, innermost=False):
    """Rows of pictures: normalised for torch, as bytes and as f32 for trefoil, whose port takes the one or the other."""

    def rows(count):
        pixels = pictures(count, side)
        x = (pixels.float() / 255 - torch.tensor(mean)) / torch.tensor(std)
        x = x if innermost else x.permute(0, 3, 1, 2).contiguous()
        return x, {"u8": pixels.numpy(), "f32": x.numpy()}

    return rows


def of_timm(name, **options):
    """An encoder of images, as a folder."""

    def make(_rows):
        import timm
        from timm.models import save_for_hf

        module = timm.create_model(name, pretrained=False, **options)
        config = module.pretrained_cfg
        randomise(module)

        def write(folder):
            save_for_hf(module, str(folder), safe_serialization=True)
            return folder

        rows = images(options.get("img_size", 224), config["mean"], config["std"])
        return Made(module.eval(), rows, write, {})

    return make


def of_torchvision(name, side=224):
    """An export to ONNX with a free batch."""

    def make(_rows):
        import torchvision

        options = {"weights_backbone": None} if name.startswith("deeplab") else {}
        module = getattr(torchvision.models, name, None) or getattr(torchvision.models.segmentation, name)
        module = module(weights=None, **options)
        module = _Out(module) if name.startswith("deeplab") else module
        rows = images(side)
        randomise(module)
        with torch.no_grad():
            calibrate_norms(module, rows(PICTURES)[0])
        module.eval()

        def write(folder):
            path = folder / "model.onnx"
            names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
            torch.onnx.export(module, (rows(1)[0],), str(path), opset_version=18, dynamo=False, **names)
            return path

        return Made(module, rows, write, {})

    return make


def of_file(name, dims, rows, batch, config=None):
    """An ONNX file out of $TREFOIL_ONNX; `dims` are its free dimensions but `batch`, `config` is what is beside it."""

    def make(count):
        path = Path(os.environ.get("TREFOIL_ONNX", "onnx")) / name
        folded = _folded(path, {**dims, batch: count})

        def write(folder):
            copy = folder / name
            copy.write_bytes(path.read_bytes())
            if config:
                (folder / "config.json").write_text(json.dumps(config))
            return copy

        x, _ports = rows(count)
        return Made(_traced(folded, x), rows, write, dims, is_planar=x.shape[1] == 3)

    return make


def of_bert(tokens, **options):
    """An encoder of texts, whose vectors of tokens are averaged."""

    def make(_rows):
        from transformers import BertConfig, BertModel

        config = BertConfig(**options)
        module = BertModel(config, add_pooling_layer=False)
        randomise(module)

        def rows(count):
            some = torch.Generator().manual_seed(1)
            ids = torch.randint(1000, config.vocab_size, (count, tokens), generator=some)
            ones, zeros = np.ones(ids.shape, np.int64), np.zeros(ids.shape, np.int64)
            return ids, {"input_ids": ids.numpy(), "attention_mask": ones, "token_type_ids": zeros}

        made = Made(_First(module.eval()), rows, _saves(module), {"sequence": tokens}, is_planar=False)
        made.find = lambda states: states.mean(1)
        return made

    return make


def of_whisper(**options):
    """The encoder of sounds."""

    def make(_rows):
        from transformers import WhisperConfig
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        config = WhisperConfig(**options)
        module = WhisperEncoder(config)
        randomise(module)

        def rows(count):
            x = torch.randn(count, config.num_mel_bins, 3000, generator=torch.Generator().manual_seed(1))
            return x, {"input_features": x.numpy()}

        return Made(_First(module.eval()), rows, _saves(module), {}, is_planar=False)

    return make


def of_sequences(kind, steps, hidden, **options):
    """A recurrent layer, which torch gives to cuDNN, as an export to ONNX with a free batch."""

    def make(_rows):
        module = _First(getattr(nn, kind)(hidden, hidden, batch_first=True, **options)).eval()

        def rows(count):
            x = torch.randn(count, steps, hidden, generator=torch.Generator().manual_seed(1))
            return x, {"x": x.numpy()}

        def write(folder):
            path = folder / "model.onnx"
            names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
            torch.onnx.export(module, (rows(2)[0],), str(path), opset_version=18, dynamo=False, **names)
            return path

        return Made(module, rows, write, {}, is_planar=False)

    return make


def _saves(module):
    def write(folder):
        module.save_pretrained(folder)
        return folder

    return write


class _First(nn.Module):
    """The first of a module's results."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)[0]


class _Out(_First):
    """A segmentation's classes of pixels."""

    def forward(self, x):
        return self.module(x)["out"]


def _folded(path, dims):
    """The file with these dimensions, its shapes and other constants folded by onnxruntime."""
    import tempfile

    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    for name, size in dims.items():
        options.add_free_dimension_override_by_name(name, size)
    with tempfile.NamedTemporaryFile(suffix=".onnx") as folded:
        options.optimized_model_filepath = folded.name
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return onnx.load(folded.name)


@torch.no_grad()
def _traced(model, x):
    """The operations of torch that onnx2torch makes of a model, with its constants as numbers: what it reads from tensors
    while it runs would break torch.compile's graphs, and wait for the GPU."""
    import onnx2torch
    from torch.fx.experimental.proxy_tensor import make_fx

    module = onnx2torch.convert(model).eval()
    graph = module.graph
    for node in list(graph.nodes):
        kind = type(module.get_submodule(node.target)).__name__ if node.op == "call_module" else ""
        if kind not in _WITH_NUMBERS:
            continue
        numbers = [_constant(module, argument) for argument in node.args[1:]]
        with graph.inserting_after(node):
            plain = graph.call_function(_WITH_NUMBERS[kind], (node.args[0], *numbers))
        node.replace_all_uses_with(plain)
        graph.erase_node(node)
    module.recompile()
    return make_fx(module)(x)


def _constant(module, node):
    value = module
    for part in node.target.split("."):
        value = getattr(value, part)
    return value.tolist()


def _reshape(x, dims):
    return x.reshape([x.shape[axis] if dim == 0 else dim for axis, dim in enumerate(dims)])


def _slice(x, starts, ends, axes, steps=None):
    where = [slice(None)] * x.ndim
    for axis, begin, end, step in zip(axes, starts, ends, steps or [1] * len(axes), strict=True):
        where[axis] = slice(begin, end, step)
    return x[tuple(where)]


_WITH_NUMBERS = {"OnnxReshape": _reshape, "OnnxSlice": _slice}

_FEW_AND_MANY = {1: Asked(1.5), 32: Asked(1.3)}
_PADDLE = "p2o.DynamicDimension"
_NSFW = {"mean": (104 / 255, 117 / 255, 123 / 255), "std": (1 / 255,) * 3}
_NSFW_CONFIG = {"architecture": "open_nsfw", "pretrained_cfg": _NSFW}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_SMALL = {"d_model": 768, "encoder_layers": 12, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072}

NETWORKS = [
    Network("ViT-B/16", of_timm("vit_base_patch16_224"), {1: Asked(ms=0.30), 32: Asked(1.5), 128: Asked(1.5)}),
    Network("BERT-base, 128 tokens", of_bert(128), {1: Asked(ms=0.25), 32: Asked(1.6)}),
    Network("BERT-large, 384 tokens", of_bert(384, **_LARGE), {32: Asked(2.3)}),
    Network(
        "YOLOv8n, 640",
        of_file("320n.onnx", {"height": 640, "width": 640}, images(640), "batch"),
        _FEW_AND_MANY,
    ),
    Network("EfficientNet-B0", of_torchvision("efficientnet_b0"), _FEW_AND_MANY),
    Network("MobileNetV3-Large", of_torchvision("mobilenet_v3_large"), _FEW_AND_MANY),
    Network("RegNetY-1.6", of_torchvision("regnet_y_1_6gf"), _FEW_AND_MANY),
    Network(
        "PP-OCRv4 detection, 960",
        of_file(
            "ch_PP-OCRv4_det_infer.onnx",
            {f"{_PADDLE}.1": 960, f"{_PADDLE}.2": 960},
            images(960, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
            f"{_PADDLE}.0",
        ),
        _FEW_AND_MANY,
    ),
    Network("ConvNeXt-T", of_timm("convnext_tiny"), {128: Asked(1.3)}),
    Network("Swin-T", of_timm("swin_tiny_patch4_window7_224"), {64: Asked(1.5)}),
    Network("DINOv2 B/14", of_timm("vit_base_patch14_dinov2", num_classes=0, img_size=224), {64: Asked(1.4)}),
    Network("CLIP L/14, images", of_timm("vit_large_patch14_clip_224", num_classes=0), {64: Asked(1.38)}),
    Network("Whisper-small, encoder", of_whisper(**_SMALL), {8: Asked(1.6)}),
    Network(
        "open_nsfw",
        of_file("open-nsfw.onnx", {}, images(224, **_NSFW, innermost=True), "unk__653", _NSFW_CONFIG),
        _FEW_AND_MANY,
    ),
    Network("DeepLabV3-ResNet50, 520", of_torchvision("deeplabv3_resnet50", side=520), _FEW_AND_MANY),
    Network("LSTM, 50 steps of 256", of_sequences("LSTM", 50, 256), {1: Asked(), 32: Asked()}),
    Network("LSTM, 50 steps of 512, both ways", of_sequences("LSTM", 50, 512, bidirectional=True), {1: Asked(), 32: Asked()}),
    Network("GRU, 50 steps of 256", of_sequences("GRU", 50, 256), {1: Asked(), 32: Asked()}),
]
NETWORKS += [
    Network(f"{network.name}, f32", network.make, {1: Asked(1.0), 32: Asked(1.0)}, is_f32=True)
    for network in NETWORKS
    if network.name in ("MobileNetV3-Large", "EfficientNet-B0", "RegNetY-1.6", "YOLOv8n, 640", "PP-OCRv4 detection, 960")
]
NETWORKS += [
    Network(f"{network.name}, e4m3", network.make, asked, is_e4m3=True)
    for network in NETWORKS
    for name, asked in [
        ("ViT-B/16", {32: Asked(), 128: Asked(ms=128 / 23.0)}),
        ("BERT-base, 128 tokens", {32: Asked()}),
        ("BERT-large, 384 tokens", {32: Asked(ms=32 / 3.2)}),
    ]
    if network.name == name
]
