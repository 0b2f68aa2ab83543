#!/usr/bin/env python3
"""Is trefoil's fp16 as exact as torch's? Whole models and layer by layer, both against torch in fp32.

    python3 benches/peers/parity.py                         # ResNet-18, ResNet-50, EfficientNet-Lite0, GoogLeNet
    python3 benches/peers/parity.py --models resnet50 --all # every convolution

The error of an image is ‖out − ref‖ / ‖ref − mean of the 64 reference outputs‖; the worst image counts. trefoil passes
with at most 1.5 times torch fp16's own error in the same run. Exit code 0: everything passed.
"""

import argparse
import copy
import json
import math
import sys
from pathlib import Path

import torch

import models
import nodes
import record
from errors import errors, markdown
from images import photos_in, varied
from trefoil import ROOT, Trefoil, default_folder

MODELS = ["resnet18", "resnet50", "tf_efficientnet_lite0", "googlenet"]
BATCHES = [1, 3, 32]
EVALUATION_IMAGES = 64  # their mean reference output is the error's zero point
EXTRA_IMAGES = 6  # judged as well: 70 images leave the last batch of 3 and of 32 partly filled
LAYER_BATCH = 8
LIMIT = 1.5


def main():
    options = parse()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("no GPU that torch can use")
    models.exact_fp32()
    photos = photos_in(options.photos)
    trefoil = Trefoil(options.bin, options.device)
    result = {**record.header(options.commit), "torch": torch.__version__, "limit": LIMIT, "models": {}}
    passed = True
    for architecture in options.models:
        calibration = varied(photos, models.CALIBRATION_IMAGES, models.SIZE, seed=1)
        loaded = models.make(architecture, options.work / architecture, calibration, options.torch_device)
        evaluation = varied(photos, EVALUATION_IMAGES + EXTRA_IMAGES, loaded.size, seed=2)
        pair = Pair(loaded, options.torch_device)
        outputs = compare_outputs(pair, trefoil, evaluation)
        show(f"{architecture}: outputs", "batch", outputs)
        layers = {} if options.no_layers else compare_layers(pair, trefoil, evaluation[:LAYER_BATCH], options.all)
        show(f"{architecture}: layers, batch {LAYER_BATCH}, each with what is fused into it", "node", layers)
        result["models"][architecture] = {"outputs": outputs, "layers": layers}
        passed &= all(row["ratio"] <= LIMIT for row in [*outputs.values(), *layers.values()])
    result["passed"] = bool(passed)
    if options.record:
        options.record.write_text(json.dumps(result, indent=1) + "\n")
    print("PASS" if passed else f"FAIL: a ratio above {LIMIT}")
    return 0 if passed else 1


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=list(models.ARCHITECTURES))
    parser.add_argument("--bin", type=Path, default=default_folder(), help="folder of trefoil's binaries")
    parser.add_argument("--photos", type=Path, default=ROOT / "weights/photos", help="folder of photos to vary")
    parser.add_argument("--work", type=Path, default=Path("/tmp/trefoil-models"), help="where the models are written")
    parser.add_argument("--device", default="cuda:0", help="trefoil's device; torch uses the same (default cuda:0)")
    parser.add_argument("--all", action="store_true", help="every convolution, not only block ends and the first ten")
    parser.add_argument("--no-layers", action="store_true", help="only whole models")
    parser.add_argument("--commit", help="trefoil's commit (default: TREFOIL_COMMIT, or git)")
    parser.add_argument("--record", type=Path, help="write all figures to this JSON file")
    options = parser.parse_args()
    options.torch_device = torch.device(options.device)
    return options


class Pair:
    """A model in torch twice: in fp32, the reference, and in fp16."""

    def __init__(self, loaded, device):
        self.loaded, self.device = loaded, device
        self.exact = copy.deepcopy(loaded.module).to(device)
        self.half = copy.deepcopy(loaded.module).to(device).half().to(memory_format=torch.channels_last)

    def exact_input(self, images):
        return self.loaded.normalised(images, self.device)

    def half_input(self, images):
        return self.exact_input(images).half().contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def compare_outputs(pair, trefoil, images):
    """Errors by batch size."""
    reference = torch.cat([pair.exact(pair.exact_input(part)).cpu() for part in chunks(images, 32)]).numpy()
    assert len({row.tobytes() for row in reference}) == len(images), "every reference output has to be different"
    rows = {}
    for batch in BATCHES:
        half = torch.cat([pair.half(pair.half_input(part)).float().cpu() for part in chunks(images, batch)]).numpy()
        ours = trefoil.outputs(pair.loaded.folder, images, batch)
        rows[batch] = judge(ours, half, reference, EVALUATION_IMAGES)
    return rows


def compare_layers(pair, trefoil, images, every):
    """Errors by trefoil's node name."""
    found = nodes.points(pair.loaded.module)
    if not every:
        found = nodes.shortened(found)
    reference = nodes.capture(pair.exact, found, pair.exact_input(images))
    half = nodes.capture(pair.half, found, pair.half_input(images))
    ours = trefoil.nodes(pair.loaded.folder, images, len(images), [point.node for point in found])
    return {name: judge(ours[name].reshape(ref.shape), half[name], ref, None) for name, ref in reference.items()}


def judge(ours, half, reference, mean_of):
    """The worst image of each side, and their ratio."""
    theirs = errors(half, reference, mean_of)
    mine = errors(ours, reference, mean_of)
    worst = {"torch": float(theirs.max()), "trefoil": float(mine.max()), "image": int(mine.argmax())}
    return {**worst, "ratio": worst["trefoil"] / worst["torch"] if worst["torch"] > 0 else math.inf}


def show(title, key, rows):
    if not rows:
        return
    header = [key, "torch fp16", "trefoil", "ratio", f"<= {LIMIT}"]
    table = [
        [name, f"{r['torch']:.3e}", f"{r['trefoil']:.3e}", f"{r['ratio']:.2f}", "yes" if r["ratio"] <= LIMIT else "NO"]
        for name, r in rows.items()
    ]
    worst = max(rows, key=lambda name: rows[name]["ratio"])
    print(f"\n### {title}\n\n{markdown(header, table)}\n")
    print(f"worst ratio {rows[worst]['ratio']:.2f} ({key} {worst})", flush=True)


def chunks(rows, size):
    return (rows[start : start + size] for start in range(0, len(rows), size))


if __name__ == "__main__":
    sys.exit(main())
