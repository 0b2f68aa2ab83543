#!/usr/bin/env python3
"""Eight threads, one GPU, batches of 32: libtorch in five orders of locking beside trefoil. One command, one record.

    python3 benches/peers/forum/run.py
    python3 benches/peers/forum/run.py --model resnet50/ --rounds 5 --record r.json

Both sides start from f32 NCHW pixels in ordinary memory, or in pinned memory, and run the same weights. The peer is
`main.cpp`, built here against the libtorch that came with torch; trefoil's side is `trefoil bench forum`. In each round
each side runs once, in turn; a ratio compares two measurements of one round. Every figure has the upload in it.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402
from torch.utils import cpp_extension  # noqa: E402

import models  # noqa: E402
import record  # noqa: E402
from errors import markdown  # noqa: E402
from images import photos_in, varied  # noqa: E402
from trefoil import ROOT, Trefoil, default_folder  # noqa: E402

PEER_ABORTS = 2  # after which a peer that aborts is an error

ORDERS = {
    1: "1 upload | lock: forward, sync, download",
    2: "2 upload | lock: forward, sync | download",
    3: "3 lock: upload, forward, sync, download",
    4: "4 upload async | lock: forward, sync, download",
    5: "5 no lock, upload async",
}


def main():
    options = parse()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU that torch can use")
    options.work.mkdir(parents=True, exist_ok=True)
    loaded = open_model(options)
    peer = build(options.work)
    module = trace(loaded, options)
    trefoil = Trefoil(options.bin, "cuda:0")
    result = {
        "benchmark": "forum-peers",
        **record.header(options.commit),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "model": loaded.architecture,
        "options": {"threads": options.threads, "batch": options.batch, "rounds": options.rounds,
                    "seconds": options.seconds},
        "upload": True,
        "rounds": [],
    }  # fmt: skip
    for index in range(options.rounds):
        sides = [("peer", lambda: run_peer(peer, module, loaded, options)),
                 ("trefoil", lambda: run_trefoil(trefoil, loaded, options))]  # fmt: skip
        measured = {}
        for name, run in sides if index % 2 == 0 else reversed(sides):
            print(f"round {index + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
            measured[name] = run()
            if name == "peer":
                measured[name], measured["peer_aborts"] = measured[name]
            measured[f"gpu_after_{name}"] = record.gpu_state()
        result["rounds"].append(measured)
    result["rows"] = rows(result["rounds"])
    if options.record:
        options.record.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{loaded.architecture} on {result['gpu']}, driver {result['driver']}, torch {result['torch']}, commit "
          f"{result['commit']}: {options.threads} threads, batches of {options.batch}, medians of {options.rounds} "
          f"rounds, the upload in every figure\n")  # fmt: skip
    print(table(result["rows"]))
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="resnet50", choices=list(models.ARCHITECTURES))
    parser.add_argument("--model", type=Path, help="a model folder (default: made in --work with fair random weights)")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="each side once in each (default 3)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each row in each round (default 1.5)")
    parser.add_argument("--bin", type=Path, default=default_folder(), help="folder of trefoil's binaries")
    parser.add_argument("--photos", type=Path, default=ROOT / "weights/photos", help="folder of photos to vary")
    parser.add_argument("--work", type=Path, default=Path("/tmp/trefoil-models"), help="where things are made")
    parser.add_argument("--commit", help="trefoil's commit (default: TREFOIL_COMMIT, or git)")
    parser.add_argument("--record", type=Path, help="write all figures to this JSON file")
    return parser.parse_args()


def open_model(options):
    folder = options.model or options.work / options.architecture
    if options.model or (folder / "model.safetensors").is_file() and (folder / "config.json").is_file():
        return models.load(folder)
    calibration = varied(photos_in(options.photos), models.CALIBRATION_IMAGES, models.SIZE, seed=1)
    return models.make(options.architecture, folder, calibration, torch.device("cuda:0"))


def build(work):
    """The peer's program, compiled once for its source, this torch and these flags."""
    source = HERE / "main.cpp"
    includes = [path for path in [*cpp_extension.include_paths(), "/usr/local/cuda/include"] if os.path.isdir(path)]
    libraries = cpp_extension.library_paths()
    flags = ["-O2", "-std=c++17", "-pthread", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
             *(f"-I{path}" for path in includes), *(f"-L{path}" for path in libraries),
             *(f"-Wl,-rpath,{path}" for path in libraries)]  # fmt: skip
    # The C++ library that libtorch is linked with, by name: some compilers link a copy of their own statically, and one
    # copy then frees what the other has not allocated.
    link = ["-Wl,--no-as-needed,--allow-shlib-undefined", "-ltorch", "-ltorch_cpu", "-ltorch_cuda", "-lc10", "-lc10_cuda",
            "-l:libstdc++.so.6"]  # fmt: skip
    key = hashlib.sha256(repr((source.read_text(), torch.__version__, flags, link)).encode()).hexdigest()[:16]
    program = work / f"forum-{key}"
    if not program.is_file():
        made = program.with_suffix(f".{os.getpid()}")
        run([os.environ.get("CXX", "g++"), str(source), *flags, "-o", str(made), *link])
        made.replace(program)
    return program


def trace(loaded, options):
    """The module as libtorch programs load it: traced, frozen, f16, channels last."""
    channels_last = torch.channels_last
    module = loaded.module.cuda().half().to(memory_format=channels_last)
    x = torch.rand(options.batch, 3, *loaded.size, device="cuda").half().contiguous(memory_format=channels_last)
    path = options.work / f"forum-{os.getpid()}.pt"
    with torch.no_grad():
        torch.jit.freeze(torch.jit.trace(module, x)).save(str(path))
    del module, x
    loaded.module.cpu().float()
    torch.cuda.empty_cache()
    return path


def run_peer(program, module, loaded, options):
    """The peer's rows, and how often libtorch aborted before it gave them all: it has been seen to."""
    shape = [3, *loaded.size]
    command = [str(program), str(module), *map(str, [options.threads, options.batch, options.seconds, *shape])]
    for aborts in range(PEER_ABORTS + 1):
        try:
            said = run(command)
        except SystemExit as error:
            if aborts == PEER_ABORTS:
                raise
            print(f"the peer is run again: {error}", file=sys.stderr, flush=True)
            continue
        return [json.loads(line) for line in said.splitlines()], aborts


def run_trefoil(trefoil, loaded, options):
    said = run([str(trefoil.binary("trefoil")), "bench", "forum", "--model", str(loaded.folder), "--device", "cuda:0",
                "--threads", str(options.threads), "--batch", str(options.batch), "--rounds", "1",
                "--seconds", str(options.seconds), "--json"])  # fmt: skip
    return json.loads(said)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def rows(rounds):
    """Each side's rows: the median rate, and how it compares with the best of the peer's ten and of its kind."""
    collected = {}
    for measured in rounds:
        peer = measured["peer"]
        best = {start: max(r["images_per_second"] for r in peer if r["start"] == start)
                for start in ("pageable", "page-locked")}  # fmt: skip
        compute = {c["format"]: c["images_per_second"] for c in measured["trefoil"]["figures"]["compute"]}
        for row in peer:
            converted = "" if row["converted"] == "in-one-call" else ", converted on the device"
            key = ("libtorch", "f32 NCHW", row["start"], ORDERS[row["order"]] + converted)
            collected.setdefault(key, []).append((row["images_per_second"], row["images_per_second"] / best[row["start"]],
                                                  None))  # fmt: skip
        for row in measured["trefoil"]["figures"]["rows"]:
            rate = row["images_per_second"]
            key = ("trefoil", row["format"], row["start"], row["name"])
            collected.setdefault(key, []).append((rate, rate / best[row["start"]], rate / compute[row["format"]]))
    return [summary(*key, samples) for key, samples in collected.items()]


def summary(side, pixels, start, order, samples):
    rates, to_best, to_compute = zip(*samples)
    return {
        "side": side,
        "pixels": pixels,
        "start": start,
        "order": order,
        "upload": True,
        "images_per_second": statistics.median(rates),
        "images_per_second_all": list(rates),
        "ratio_to_best_peer": statistics.median(to_best),
        "ratio_to_own_compute": statistics.median(to_compute) if None not in to_compute else None,
    }


def table(rows):
    """Markdown."""
    header = ["side", "pixels", "start in", "order", "images/s", "to best peer", "to own compute"]
    cells = []
    for row in rows:
        own = "" if row["ratio_to_own_compute"] is None else f"{row['ratio_to_own_compute']:.3f}"
        cells.append([row["side"], row["pixels"], row["start"], row["order"].replace("|", "/"),
                      f"{row['images_per_second']:,.0f}", f"{row['ratio_to_best_peer']:.2f}x", own])  # fmt: skip
    note = "to best peer: of the peer's orders that start in the same kind of memory, in the same round."
    return f"{markdown(header, cells)}\n\n{note}"


if __name__ == "__main__":
    sys.exit(main())
