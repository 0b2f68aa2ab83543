#!/usr/bin/env python3
"""Trains convnet28, a small Fashion-MNIST classifier, and writes convnet28/.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy==1.26.4 torch==2.5.1
    nice /tmp/venv/bin/python weights/train_convnet28.py              # train and store
    nice /tmp/venv/bin/python weights/train_convnet28.py --evaluate   # measure what is stored
    python3 weights/train_convnet28.py --test-data                    # tests/data/, no torch

CPython 3.11, CPU only, two threads. The images are the Debian package
`dataset-fashion-mnist`, fetched with `apt-get download` and unpacked with `dpkg -x`
into a temporary folder; `--data DIR` names a folder that already has the four
`*-ubyte.gz` files. Training is seeded; another processor or torch version may
still round differently and end in other weights.
"""

import argparse
import gzip
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import safetensors_file

HERE = Path(__file__).resolve().parent
OUT = HERE / "convnet28"
TEST_DATA = HERE.parent / "tests" / "data"
PACKAGE = "dataset-fashion-mnist"

LABELS = [
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
]
CHANNELS = [1, 32, 32, 64, 64, 128]  # in and out of conv1 .. conv5
POOL_AFTER = (2, 4)
SEED, EPOCHS, BATCH, PEAK_RATE, WEIGHT_DECAY, SMOOTHING = 28, 18, 128, 0.1, 5e-4, 0.05
TEST_SLICE = 1000


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--data", type=Path, help="folder of the four *-ubyte.gz files")
    args.add_argument("--epochs", type=int, default=EPOCHS)
    args.add_argument("--evaluate", action="store_true", help="only measure the stored model")
    args.add_argument("--test-data", action="store_true", help="only write tests/data/")
    args = args.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        folder = args.data or fetch(Path(temp))
        data = {
            part: (
                read_idx(folder / f"{part}-images-idx3-ubyte.gz"),  # u8 [N,28,28]
                read_idx(folder / f"{part}-labels-idx1-ubyte.gz"),  # u8 [N]
            )
            for part in ("train", "t10k")
        }
    if args.test_data:
        return write_test_data(*data["t10k"])

    mean, std = data["train"][0].mean() / 255, data["train"][0].std() / 255
    mean, std = round(float(mean), 6), round(float(std), 6)
    if not args.evaluate:
        tensors = train(*data["train"], mean, std, args.epochs)
        OUT.mkdir(exist_ok=True)
        digest = safetensors_file.write(OUT / "model.safetensors", tensors)
        safetensors_file.write_config(OUT / "config.json", config(mean, std))
        print(f"{len(tensors)} tensors, sha256 {digest}")
    stored = safetensors_file.read(OUT / "model.safetensors")
    report(stored, *data["t10k"], mean, std)


# ---- data --------------------------------------------------------------------


def fetch(folder):
    """Downloads and unpacks the Debian package; returns the folder of its files."""
    subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, check=True)
    (package,) = folder.glob("*.deb")
    subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    return folder / "root/usr/share/datasets/fashion-mnist"


def read_idx(path):
    """Reads a gzipped IDX file of unsigned bytes.

    IDX: two zero bytes, the type (8 = u8), the number of dimensions, each
    dimension as a big-endian u32, the elements.
    """
    blob = gzip.decompress(path.read_bytes())
    zero, kind, dims = struct.unpack_from(">HBB", blob)
    assert (zero, kind) == (0, 8), f"{path}: not an IDX file of bytes"
    shape = struct.unpack_from(f">{dims}I", blob, 4)
    elements = np.frombuffer(blob, np.uint8, offset=4 + 4 * dims)
    assert elements.size == np.prod(shape), f"{path}: wrong length"
    return elements.reshape(shape)


def write_idx(path, array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes(), 9, mtime=0))


def write_test_data(images, labels):
    TEST_DATA.mkdir(parents=True, exist_ok=True)
    write_idx(TEST_DATA / "fashion-mnist-1000.idx3.gz", images[:TEST_SLICE])
    write_idx(TEST_DATA / "fashion-mnist-1000.labels.idx1.gz", labels[:TEST_SLICE])


# ---- model -------------------------------------------------------------------


def build():
    from torch import nn

    layers = {}
    for i in range(1, 6):
        layers[f"conv{i}"] = nn.Conv2d(CHANNELS[i - 1], CHANNELS[i], 3, padding=1, bias=False)
        layers[f"bn{i}"] = nn.BatchNorm2d(CHANNELS[i], eps=1e-5)
    layers["fc"] = nn.Linear(CHANNELS[-1], len(LABELS))
    return nn.ModuleDict(layers)


def forward(net, x):  # x: f32 [N,1,28,28], normalised
    import torch.nn.functional as F

    for i in range(1, 6):
        x = F.relu(net[f"bn{i}"](net[f"conv{i}"](x)))
        if i in POOL_AFTER:
            x = F.max_pool2d(x, 2)
    return net["fc"](x.mean((2, 3)))  # [N,10]


def train(images, labels, mean, std, epochs):
    """Trains from scratch; returns the tensors as they are to be stored."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(2)
    images = torch.tensor(images)
    labels = torch.tensor(labels, dtype=torch.long)
    net = build().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(
        net.parameters(), PEAK_RATE, momentum=0.9, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    steps = len(images) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_RATE, total_steps=epochs * steps, pct_start=0.25
    )
    began = time.time()
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(images))[: steps * BATCH].view(steps, BATCH):
            x = (augment(images[rows]).float() / 255 - mean) / std
            x = x.unsqueeze(1).contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(forward(net, x), labels[rows], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        seconds = time.time() - began
        print(f"epoch {epoch + 1}: loss {total / steps:.4f}, {seconds:.0f} s", flush=True)
    return storable(net.state_dict())


def augment(batch):  # u8 [N,28,28]
    """Mirrors half of the images and shifts each by up to 2 pixels, with zeros."""
    import torch
    import torch.nn.functional as F

    n, size, reach = len(batch), batch.shape[1], 2
    padded = F.pad(batch, (reach,) * 4)
    down, right = torch.randint(0, 2 * reach + 1, (2, n, 1))
    columns = torch.arange(size).expand(n, size)
    columns = torch.where(torch.rand(n, 1) < 0.5, columns.flip(1), columns)
    rows = torch.arange(size) + down
    return padded[torch.arange(n)[:, None, None], rows[:, :, None], (columns + right)[:, None, :]]


def storable(state):
    """Filters and the fc matrix in fp16; batch norms and the fc bias in fp32."""
    tensors = {}
    for name, tensor in state.items():
        if not name.endswith(".num_batches_tracked"):
            array = tensor.contiguous().numpy()
            tensors[name] = array.astype("<f2" if array.ndim > 1 else "<f4")
    return tensors


def report(tensors, images, labels, mean, std):
    """Prints the accuracy of stored tensors, computed in fp32."""
    import torch

    torch.set_num_threads(2)
    net = build().eval()
    state = {name: torch.tensor(array.astype("<f4")) for name, array in tensors.items()}
    missing = net.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert all(name.endswith(".num_batches_tracked") for name in missing.missing_keys)
    x = ((torch.tensor(images).float() / 255 - mean) / std).unsqueeze(1)
    with torch.no_grad():
        classes = torch.cat([forward(net, part).argmax(1) for part in x.split(500)])
    right = classes.numpy() == labels
    print(f"test accuracy: {right.sum()} of {right.size}")
    print(f"first {TEST_SLICE}: {right[:TEST_SLICE].sum()} of {TEST_SLICE}")


def config(mean, std):
    return {
        "architecture": "trefoil_convnet28",
        "num_classes": len(LABELS),
        "num_features": CHANNELS[-1],
        "pretrained_cfg": {
            "input_size": [1, 28, 28],
            "fixed_input_size": True,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": [mean],
            "std": [std],
            "num_classes": len(LABELS),
            "first_conv": "conv1",
            "classifier": "fc",
            "license": "mit",
        },
        "label_names": LABELS,
    }


if __name__ == "__main__":
    sys.exit(main())
