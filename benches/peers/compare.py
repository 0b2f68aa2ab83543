#!/usr/bin/env python3
"""How fast is trefoil's compute beside its peers? One command, both sides in turn in one run.

    python3 benches/peers/compare.py
    python3 benches/peers/compare.py --batch 1 256 --pairs 7 --inductor --record r.json    # and a plot, r.svg

Every side runs the same weights in fp16, NHWC, its input on the device, in one CUDA graph. Peers start from normalised
fp16; trefoil starts from bytes and also normalises them and writes its result rows. In each round every side is
measured once, in rotating order, for as long and after as long a pause as the others; a ratio compares two measurements
of the same round. Medians over the rounds, with the smallest and the largest. While a side is measured the GPU is asked
for clocks, temperature and power every 50 ms. With --int8 trefoil's side is in bytes, calibrated on the photos, and so is
one peer more, if torch can, whose calls no graph captures.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import numpy as np
import torch

import models
import plot
import record
import turns
from errors import errors, markdown
from images import photos_in, saved, varied
from int8 import Int8ResNet
from peers import CHANNELS_LAST, Calls, Graph, floor_ms, peers_of
from trefoil import ROOT, Trefoil, default_folder

OURS = "trefoil"
INT8 = "torch int8"  # its operations cannot be captured in a graph
AGREE = 0.6  # a peer further than this from fp32 computes something else: unrelated outputs have 1.4, fp16 rounding in a
# hundred random layers, which nothing trained against it, up to 0.31


def main():
    options = parse()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU that torch can use")
    photos = photos_in(options.photos)
    loaded = open_model(options, photos)
    trefoil = Trefoil(options.bin, "cuda:0")
    folder = loaded.folder
    int8 = None
    if options.int8:
        scaling = varied(photos, models.CALIBRATION_IMAGES, loaded.size, seed=1)
        folder = options.work / f"{loaded.architecture}-int8"
        trefoil.calibrate(loaded.folder, saved(scaling, options.work / "photos"), folder)
        with torch.no_grad():
            int8 = torch_int8(loaded, scaling)
    result = {
        **record.header(options.commit),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "model": loaded.architecture,
        "dtype": "fp16 NHWC, fp32 accumulation" + ", trefoil in int8" * options.int8,
        "input_hw": list(loaded.size),
        "rounds": options.pairs,
        "seconds": options.seconds,
        "gpu_asked_every_ms": turns.EVERY_MS,
        "floor": f"unfused layers at {options.hbm_tbps} TB/s and {options.fp16_tflops} TFLOP/s",
        "batches": {},
    }
    print(f"{loaded.architecture} on {result['gpu']}, driver {result['driver']}, torch {result['torch']}, "
          f"commit {result['commit']}, {options.pairs} rounds", flush=True)  # fmt: skip
    for batch in options.batch:
        images = varied(photos, batch, loaded.size, seed=3)
        with torch.no_grad():
            sides = peer_graphs(loaded, images, options.inductor, int8)
            floor = floor_ms(loaded.module, loaded.size, batch, options.hbm_tbps, options.fp16_tflops)
            bench = lambda: trefoil.bench(folder, batch, options.seconds)
            measured = measure(sides, bench, options)
        result["batches"][batch] = {"floor_ms": floor, **measured}
        print(f"\n### batch {batch}\n\n{table(result['batches'][batch], batch)}\n", flush=True)
        if options.record:  # after each: what was measured stays if a later batch is cut off
            options.record.write_text(json.dumps(result, indent=1) + "\n")
        if options.plot:
            options.plot.write_text(plot.svg(result))
        del sides
        torch.cuda.empty_cache()
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="resnet50", choices=list(models.ARCHITECTURES))
    parser.add_argument("--model", type=Path, help="a model folder (default: made in --work with fair random weights)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 128, 256])
    parser.add_argument("--pairs", type=int, default=5, help="rounds: each side measured once in each (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="that a side is measured in each round (default 1)")
    parser.add_argument("--inductor", action="store_true", help="also torch.compile, which takes long")
    parser.add_argument("--int8", action="store_true", help="trefoil in bytes, and torch's int8 as one more peer")
    parser.add_argument("--bin", type=Path, default=default_folder(), help="folder of trefoil's binaries")
    parser.add_argument("--photos", type=Path, default=ROOT / "weights/photos", help="folder of photos to vary")
    parser.add_argument("--work", type=Path, default=Path("/tmp/trefoil-models"), help="where a model is made")
    parser.add_argument("--hbm-tbps", type=float, default=4.3, help="for the floor: measured memory rate (default 4.3)")
    parser.add_argument("--fp16-tflops", type=float, default=780.0, help="likewise: measured fp16 rate (default 780)")
    parser.add_argument("--commit", help="trefoil's commit (default: TREFOIL_COMMIT, or git)")
    parser.add_argument("--record", type=Path, help="write all figures to this JSON file")
    parser.add_argument("--plot", type=Path, help="write a plot to this SVG file (default: beside the record)")
    options = parser.parse_args()
    if options.record and not options.plot:
        options.plot = options.record.with_suffix(".svg")
    return options


def open_model(options, photos):
    if options.model:
        return models.load(options.model)
    calibration = varied(photos, models.CALIBRATION_IMAGES, models.SIZE, seed=1)
    folder = options.work / options.architecture
    return models.make(options.architecture, folder, calibration, torch.device("cuda:0"))


def torch_int8(loaded, scaling):
    """Torch's int8 with scales of these images; nothing if torch cannot."""
    try:
        images = loaded.normalised(scaling, "cuda")
        net = Int8ResNet(loaded.module, images)
        net(images[:1])
        return net
    except (RuntimeError, NotImplementedError) as error:
        print(f"{INT8}: torch cannot: {str(error).splitlines()[0]}", flush=True)
        return None


def peer_graphs(loaded, images, inductor, int8):
    """Each peer's graph on these images, checked against fp32, and torch's int8 if there is one."""
    x = loaded.normalised(images, "cuda").half().contiguous(memory_format=CHANNELS_LAST)
    reference = fp32_outputs(loaded, images)
    sides = {}
    for name, make in peers_of(loaded, inductor).items():
        sides[name] = Graph(make(), x)
        check(name, sides[name].output(), reference)
    if int8 is not None:
        sides[INT8] = Calls(int8, x)
        print(f"{INT8}: error {errors(sides[INT8].output(), reference).max():.3g} against fp32", flush=True)
    return sides


def fp32_outputs(loaded, images):
    module = loaded.module.cuda()
    parts = [module(loaded.normalised(images[i : i + 32], "cuda")).cpu() for i in range(0, len(images), 32)]
    loaded.module.cpu()
    return torch.cat(parts).numpy()


def check(name, output, reference):
    """Finite, and the same network. One image has no mean to compare with; then its own size is the measure."""
    if not np.isfinite(output).all():
        raise SystemExit(f"{name}: the output is not finite")
    if len(reference) > 1:
        worst = errors(output, reference).max()
    else:
        worst = np.linalg.norm(output - reference) / np.linalg.norm(reference)
    if worst > AGREE:
        raise SystemExit(f"{name}: error {worst:.3g} against fp32: not the same network")


def measure(sides, bench, options):
    """The sides in turn, and what trefoil said last."""
    said = []

    def ours():
        turn, figure = bench()
        said.append(figure)
        return turn

    peers = {name: lambda graph=graph: graph.median_ms(options.seconds) for name, graph in sides.items()}
    with turns.Watch() as watch:
        return {**turns.measure(peers, (OURS, ours), options.pairs, watch), "trefoil_said": said[-1]}


def table(measured, batch):
    """Markdown: a row for each side; clock and temperature are what the GPU had while that side was measured."""
    header = ["side", "ms", "min", "max", "images/s", "trefoil is", "of floor", "MHz", "C"]
    rows = []
    for name, times in measured["ms"].items():
        median = statistics.median(times)
        ratio = statistics.median(t / ours for t, ours in zip(times, measured["ms"][OURS]))
        beside = "" if name == OURS else f"{ratio:.2f}x as fast"
        rows.append([name, f"{median:.4f}", f"{min(times):.4f}", f"{max(times):.4f}", f"{batch / median * 1e3:,.0f}",
                     beside, f"{median / measured['floor_ms']:.2f}x", *(of_side(measured, name, what)
                                                                        for what in ("sm_mhz", "celsius"))])  # fmt: skip
    return markdown(header, rows)


def of_side(measured, side, what):
    """The median over a side's turns, as text."""
    seen = [state[what] for state in measured["gpu"] if state["side"] == side and what in state]
    return f"{statistics.median(seen):.0f}" if seen else "-"


if __name__ == "__main__":
    sys.exit(main())
