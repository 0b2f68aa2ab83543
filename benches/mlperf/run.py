#!/usr/bin/env python3
"""MLPerf LoadGen drives trefoil through its C interface; LoadGen says what is valid.

    python3 benches/mlperf/run.py Offline --library LIB --model resnet50/ --images i.npy --labels l.npy --rate 60000
    python3 benches/mlperf/run.py Server  --library LIB --model resnet50/ --rate 45000 --search --record server.json

Settings, seeds among them, are LoadGen's own for ResNet-50, but for those that options name. Images are u8 in ordinary
memory; copying them into page-locked memory is within every figure. Succeeds if LoadGen's verdict is VALID.
"""

import argparse
import gzip
import hashlib
import importlib.metadata
import json
import os
import re
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

import mlperf_loadgen as loadgen
import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "peers")]

import record  # noqa: E402
import client  # noqa: E402
from library import Engine  # noqa: E402

RANDOM_IMAGES = 1024
LOGS = Path(tempfile.gettempdir()) / "trefoil-mlperf"
SEARCH_SECONDS = 4
SEARCH_STEP = 0.97


def main():
    options = parse()
    sizes = [int(size) for size in options.batch.split(",")]
    engine = Engine(options.library, options.model, options.device, sizes, slots=options.slots, staging=options.staging)
    images, labels = samples(options, engine.input)
    if options.accuracy and labels is None:
        raise SystemExit("--accuracy needs --labels")
    settings = official(options, len(images))
    kept = {
        "benchmark": "mlperf",
        **record.header(options.commit),
        "loadgen": importlib.metadata.version("mlcommons-loadgen"),
        "device": engine.device_info().name.decode(),
        "model": Path(options.model).name,
        "precision": precision(engine, Path(options.model)),
        "includes": "copying images from ordinary memory, upload, normalisation, network, the best class, download",
        "cores": os.cpu_count(),
        "options": {name: value for name, value in vars(options).items() if not isinstance(value, Path)},
        "runs": [],
    }

    def run(rate, seconds):
        told = test(engine, images, labels, settings, options, rate, seconds)
        print(line(told), flush=True)
        kept["runs"].append(told)
        return told["valid"]

    rate, lengths = options.rate, [SEARCH_SECONDS, options.seconds] if options.search else [options.seconds]
    while not (valid := all(run(rate, seconds) for seconds in lengths)) and options.search:
        rate *= SEARCH_STEP
        if rate < options.rate / 10:
            print(f"no valid run down to {rate:.0f}/s: the rate is not what is wrong", file=sys.stderr)
            break
    engine.close()
    if options.record:
        options.record.write_text(json.dumps(kept, indent=1) + "\n")
    print(kept["runs"][-1]["summary"])
    return 0 if valid else 1


def precision(engine, model):
    """What the network is computed in; a model with scales computes its convolutions in bytes."""
    floats = "fp16" if engine.device_info().capability_major else "fp32"
    config = model / "config.json"
    is_quantised = config.is_file() and "quantization" in json.loads(config.read_text())
    return f"int8 and {floats}" if is_quantised else floats


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=["Offline", "Server"])
    parser.add_argument("--library", type=Path, required=True, help="libtrefoil.so, as scripts/install_c.sh makes it")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=Path, help=".npy of u8 [N, H, W, C], or gzipped IDX (default: random bytes)")
    parser.add_argument("--labels", type=Path, help="their classes, as .npy or gzipped IDX")
    parser.add_argument("--accuracy", action="store_true", help="LoadGen's accuracy mode: each image once")
    parser.add_argument("--at-least", type=float, default=0, help="the part that has to be right in accuracy mode")
    parser.add_argument("--rate", type=float, default=1000, help="samples/s: expected of Offline, asked of Server")
    parser.add_argument("--search", action="store_true", help="Server: the first rate that is valid, from --rate down")
    parser.add_argument("--seconds", type=float, default=600, help="least duration (default: the official 600)")
    parser.add_argument("--samples", type=int, help="least samples (default: the official 24,576 of Offline)")
    parser.add_argument("--latency-ms", type=float, default=15, help="Server: limit of p99 (default: the official 15)")
    parser.add_argument("--batch", default="128", help="the largest batch, or all sizes: 16,32,48 (default 128)")
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--staging", type=int, default=7)
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--fillers", type=int, default=1, help="threads that fill a batch together (default 1)")
    parser.add_argument("--batcher", action="store_true", help="each sample goes to the library's batcher by itself")
    parser.add_argument("--log", type=Path, default=LOGS, help=f"LoadGen's files (default {LOGS})")
    parser.add_argument("--commit", help="trefoil's commit (default: TREFOIL_COMMIT, or git)")
    parser.add_argument("--record", type=Path, help="write all figures to this JSON file")
    return parser.parse_args()


def samples(options, shape):
    """Images and their classes."""
    expected = (shape.height, shape.width, shape.channels)
    if options.images is None:
        return np.random.default_rng(1).integers(0, 256, (RANDOM_IMAGES, *expected), np.uint8), None
    images = array(options.images)
    images = images.reshape(*images.shape, 1) if images.ndim == 3 else images
    if images.shape[1:] != expected or images.dtype != np.uint8:
        raise SystemExit(f"{options.images}: {images.dtype} {list(images.shape[1:])}, the model takes u8 {expected}")
    return images, array(options.labels) if options.labels else None


def array(path):
    """An array of a file: .npy, or IDX under gzip."""
    if path.suffix == ".npy":
        return np.load(path)
    content = gzip.decompress(path.read_bytes())
    dimensions = struct.unpack(f">{content[3]}I", content[4 : 4 + 4 * content[3]])
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(dimensions)


def official(options, images):
    """LoadGen's settings for ResNet-50, from the configuration that it carries; it reads that once in a process."""
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, options.scenario)
    if settings.FromConfig(os.devnull, "resnet50", options.scenario) != 0 or settings.min_duration_ms != 600_000:
        raise SystemExit("LoadGen has no settings of its own for ResNet-50")
    settings.mode = loadgen.TestMode.AccuracyOnly if options.accuracy else loadgen.TestMode.PerformanceOnly
    settings.server_target_latency_ns = int(options.latency_ms * 1e6)
    settings.min_query_count = options.samples or settings.min_query_count
    settings.performance_sample_count_override = min(settings.performance_sample_count_override, images)
    settings.server_coalesce_queries = True  # what is due at once is one call
    return settings


def test(engine, images, labels, settings, options, rate, seconds):
    """One run of LoadGen's: what it said, and what was seen beside it."""
    settings.min_duration_ms = int(seconds * 1000)
    settings.offline_expected_qps = settings.server_target_qps = rate
    if options.batcher:
        under_test = client.Rows(engine, images, labels, options.producers)
    else:
        grain = engine.capacity if options.scenario == "Offline" else 1
        under_test = client.Batches(engine, images, labels, options.producers, options.fillers, grain)
    sut = loadgen.ConstructFastSUT(under_test.issue, under_test.flush)
    loaded = settings.performance_sample_count_override
    qsl = loadgen.ConstructQSL(len(images), loaded, lambda _: None, lambda _: None)  # all are in memory
    logs = loadgen.LogSettings()
    logs.log_output.outdir = str(options.log)
    logs.enable_trace = False
    options.log.mkdir(parents=True, exist_ok=True)
    states = []
    middle = threading.Timer(seconds / 2, lambda: states.append({"at": "middle", **record.gpu_state()}))
    middle.start()
    began, busy = time.monotonic(), time.process_time()
    loadgen.StartTestWithLogSettings(sut, qsl, settings, logs, "")
    took, busy = time.monotonic() - began, time.process_time() - busy
    middle.cancel()
    middle.join()
    mean_batch = under_test.close()
    loadgen.DestroyQSL(qsl)
    loadgen.DestroySUT(sut)
    states.append({"at": "end", **record.gpu_state()})
    return {
        "seconds": took,
        "cpu_seconds": busy,
        "gpu": states,
        "mean_batch": mean_batch,
        "right": under_test.right / under_test.answered if labels is not None else None,
        **(accuracy(options.log, labels, options.at_least) if options.accuracy else verdict(options.log)),
    }


def verdict(folder):
    """LoadGen's own words, and the figures in them."""
    summary = (folder / "mlperf_log_summary.txt").read_text()
    detail = (folder / "mlperf_log_detail.txt").read_bytes()
    lines = [json.loads(line.removeprefix(b":::MLLOG ")) for line in detail.splitlines()]
    told = [line for line in lines if line["metadata"].get("is_error") or line["metadata"].get("is_warning")]

    def figure(name):
        return float(re.search(rf"^{name} *: *([\d.e+]+)$", summary, re.MULTILINE)[1])

    server = "Scenario : Server" in summary
    return {
        "valid": re.search(r"^Result is : (\w+)$", summary, re.MULTILINE)[1] == "VALID",
        "scheduled_per_second": figure("Scheduled samples per second") if server else None,
        "samples_per_second": figure("Completed samples per second" if server else "Samples per second"),
        "p50_seconds": figure(r"50.00 percentile latency \(ns\)") / 1e9,
        "p99_seconds": figure(r"99.00 percentile latency \(ns\)") / 1e9,
        "errors_and_warnings": [line["value"] for line in told],
        "detail_sha256": hashlib.sha256(detail).hexdigest(),
        "summary": summary,
    }


def accuracy(folder, labels, at_least):
    """How many of LoadGen's logged answers are right; every image has to be there once."""
    logged = json.loads((folder / "mlperf_log_accuracy.json").read_text())
    answers = {answer["qsl_idx"]: np.frombuffer(bytes.fromhex(answer["data"]), np.uint32)[0] for answer in logged}
    right = sum(int(labels[index] == answer) for index, answer in answers.items())
    valid = len(logged) == len(answers) == len(labels) and right >= at_least * len(labels)
    summary = f"accuracy: {right} of {len(labels)} right, {len(logged)} answers\n"
    return {"valid": valid, "answers": len(logged), "accuracy": right / len(labels), "summary": summary}


def line(run):
    """A run in a line."""
    if "accuracy" in run:
        return "VALID" if run["valid"] else "INVALID"
    asked = f"{run['scheduled_per_second']:,.0f}/s asked, " if run["scheduled_per_second"] else ""
    right = "" if run["right"] is None else f", {100 * run['right']:.2f} % right"
    p99 = f"p99 {1e3 * run['p99_seconds']:.2f} ms, " if asked else ""
    valid = "VALID" if run["valid"] else "INVALID"
    busy = run["cpu_seconds"] / run["seconds"]
    return (f"{valid}: {asked}{run['samples_per_second']:,.0f}/s, {p99}{run['mean_batch']:.1f} a batch{right}, "
            f"{run['seconds']:.1f} s, {busy:.1f} cores busy")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
