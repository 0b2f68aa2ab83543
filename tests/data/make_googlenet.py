#!/usr/bin/env python3
"""Writes googlenet.txt: what torchvision's GoogLeNet makes of two images, in f64, with weights that a formula gives.

    python3 tests/data/make_googlenet.py

Needs torch 2.11 to 2.15 and torchvision 0.26 to 0.30, on any CPU. tests/googlenet.rs has the same formula, so that no
weights need be kept: the numbers of a tensor are splitmix64 of its name's FNV-1a hash plus the element's index, the upper
24 bits of each from -1 to 1 in steps of 2^-23.
"""

from pathlib import Path

import numpy as np
import torch
import torchvision

CLASSES, IMAGES, HEIGHT, WIDTH = 10, 2, 75, 66


def numbers(name, count):
    """f32 from -1 to 1."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) + np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(40)).astype(np.float32) - np.float32(2**23)) / np.float32(2**23)


def tensor(name, dims):
    """Filters and weights of a size that keeps activations near 1, small shifts, variances and scales from 0.5 to 1.5."""
    values = numbers(name, int(np.prod(dims)))
    if len(dims) > 1:
        values = values * np.float32(np.sqrt(6.0 / np.prod(dims[1:])))
    elif name.endswith("running_var") or name.endswith("bn.weight"):
        values = values * np.float32(0.5) + np.float32(1.0)
    else:
        values = values * np.float32(0.25)
    return torch.from_numpy(values.reshape(dims))


def main():
    net = torchvision.models.googlenet(weights=None, num_classes=CLASSES, init_weights=False, aux_logits=False).eval()
    state = net.state_dict()
    net.load_state_dict({name: tensor(name, list(t.shape)) if t.is_floating_point() else t for name, t in state.items()})
    x = torch.from_numpy(numbers("images", IMAGES * HEIGHT * WIDTH * 3).reshape(IMAGES, HEIGHT, WIDTH, 3))  # NHWC
    with torch.no_grad():
        logits = net.double()(x.permute(0, 3, 1, 2).double())
    lines = [" ".join(f"{value:.9e}" for value in row) for row in logits.tolist()]
    Path(__file__).with_name("googlenet.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
