#!/usr/bin/env python3
"""Many networks beside torch, both sides in turn in one run.

    python3 benches/peers/beside.py --record beside.json
    python3 benches/peers/beside.py --only YOLO EfficientNet --rows 1

torch's sides are the module in a CUDA graph (`eager`), torch.compile with frozen weights in a CUDA graph (`inductor`), and,
if asked for, the same with max-autotune (`autotuned`); for networks in e4m3 also `inductor` with linear layers in e4m3. Each network at each number of rows has a process that makes its
sides; all of them compile at once, for at most --limit seconds, and a lock gives the GPU to one at a time where kernels
are timed. Then nothing compiles any more, and the sides are timed one after the other, --rounds times. trefoil stays open
meanwhile (`examples/in_turns.rs`). Answers are compared with torch in f32.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import record
import turns
import workers
from errors import errors, markdown
from figures import HEADER, OURS, Asked, cells, line, misses
from networks import NETWORKS
from trefoil import InTurns, Trefoil, default_folder


@dataclass(frozen=True)
class Given:
    """What a worker is given beside its network."""

    sides: tuple
    dtype: torch.dtype
    device: str
    folder: Path
    lock: Path
    writes: bool = False


class Worker:
    """The process of torch's sides for one network at some rows."""

    def __init__(self, network, rows, given):
        self.network, self.rows, self.said, self.is_ready, self.failed = network, rows, {}, False, ""
        context = multiprocessing.get_context("fork")  # which imports nothing again
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=workers.serve, args=(other, network, rows, given), daemon=True)
        self.process.start()
        other.close()

    def listen(self):
        """Takes what the process has said."""
        try:
            while not self.failed and self.pipe.poll():
                kind, what = self.pipe.recv()
                if kind == "side":
                    self.said.setdefault("sides", {})[what[0]] = what[1:]
                    print(f"  {self.network.name}, {self.rows}: {what[0]} after {what[1]:.0f} s", flush=True)
                elif kind == "lost":
                    print(f"  {self.network.name}, {self.rows}: no {what[0]}\n{what[1]}", flush=True)
                elif kind == "failed":
                    self.failed = what
                elif kind == "ready":
                    self.is_ready = True
                else:
                    self.said[kind] = what
        except EOFError:
            self.failed = "the process ended"

    def ms(self, side, seconds):
        self.pipe.send((side, seconds))
        if not self.pipe.poll(60):
            raise RuntimeError(f"{side}: no answer")
        try:
            kind, answer = self.pipe.recv()[:2]
        except EOFError:
            raise RuntimeError(f"{side}: the process ended") from None
        if kind != "ms":
            raise RuntimeError(f"{side}: {answer}")
        return answer

    def close(self):
        self.process.kill()
        self.process.join()


def main():
    options = parse()
    networks = list({n.name: n for part in options.only for n in NETWORKS if part in n.name}.values())
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    trefoil = Trefoil(options.bin, options.device)
    result = {
        **record.header(options.commit),
        "torch": torch.__version__,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "bf16": options.bf16,
        "figures": [],
    }
    print(f"{result['gpu']}, driver {result['driver']}, torch {result['torch']}, commit {result['commit']}", flush=True)
    with tempfile.TemporaryDirectory() as work, turns.Watch() as watch:
        started = start(networks, options, Path(work))
        compile_all(started, options.limit)
        for network in networks:
            for figure in compare(network, started[network.name], trefoil, watch, options):
                result["figures"].append(figure)
                print(line(figure), flush=True)
                if options.record:
                    options.record.write_text(json.dumps(result) + "\n")
    print("\n" + table(result["figures"]) + "\n\n" + misses(result["figures"]))
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="networks whose name contains one of these, in this order")
    parser.add_argument("--rows", type=int, nargs="+", help="instead of those that something is asked for")
    every = [workers.EAGER, workers.INDUCTOR, workers.AUTOTUNED]
    parser.add_argument("--sides", nargs="+", choices=every, default=every[:2], help="of torch (default: the first two)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds to compile in (default 600)")
    parser.add_argument("--rounds", type=int, default=3, help="each side measured once in each (default 3)")
    parser.add_argument("--seconds", type=float, default=0.3, help="that a side is measured in each (default 0.3)")
    parser.add_argument("--bf16", action="store_true", help="both sides of what is otherwise in f16")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 (default), or cpu to try the scripts")
    parser.add_argument("--bin", type=Path, default=default_folder(), help="folder of trefoil's binaries")
    parser.add_argument("--commit", help="trefoil's commit (default: TREFOIL_COMMIT, or git)")
    parser.add_argument("--record", type=Path, help="write all figures to this JSON file")
    return parser.parse_args()


def start(networks, options, work):
    """The processes of each network."""
    started = {}
    for index, network in enumerate(networks):
        folder = work / str(index)
        folder.mkdir()
        halves = torch.bfloat16 if options.bf16 else torch.float16
        dtype = torch.float32 if network.is_f32 or options.device == "cpu" else halves
        sides = (*options.sides, *[workers.FP8] * network.is_e4m3)
        given = Given(sides, dtype, options.device.split(":")[0], folder, work / "lock")
        rows = options.rows or list(network.asked)
        started[network.name] = [Worker(network, n, replace(given, writes=n == rows[0])) for n in rows]
    return started


def compile_all(started, limit):
    """Until all are ready, or for so many seconds."""
    everyone = [worker for of_network in started.values() for worker in of_network]
    end = time.monotonic() + limit
    while time.monotonic() < end and not all(worker.is_ready or worker.failed for worker in everyone):
        for worker in everyone:
            worker.listen()
        time.sleep(0.1)
    for worker in everyone:
        if not worker.is_ready:
            worker.failed = worker.failed or f"not ready in {limit:.0f} s"
            print(f"  {worker.network.name}, {worker.rows}: {worker.failed}", flush=True)
            worker.close()


def compare(network, started, trefoil, watch, options):
    """The figures of a network. Those whose torch is missing have trefoil's alone."""
    [files] = [worker.said["files"] for worker in started if "files" in worker.said] or [None]
    if files is None:
        print(f"{network.name}: no files", flush=True)
        return
    path, sizes, port = files
    given = [f"{name}={size}" for name, size in sizes.items()]
    if network.is_f32 or options.bf16:
        given.append("precision=f32" if network.is_f32 else "precision=bf16")
    try:
        if network.is_e4m3:
            given.append(f"e4m3={scaling_rows(path, started, trefoil, given)}")
        with InTurns(trefoil, path, [worker.rows for worker in started], *given) as ours:
            for worker in started:
                yield one(network, worker, ours, port, watch, options)
    except RuntimeError as error:
        print(f"{network.name}: {error}", flush=True)
    for worker in started:
        worker.close()


def scaling_rows(path, started, trefoil, given):
    """A file of the rows that are compared, which give trefoil's products in e4m3 their scales, as they give torch's."""
    [ports, *_] = [worker.said["reference"][0] for worker in started if "reference" in worker.said]
    with InTurns(trefoil, path, [1], *given) as floats:
        floats.records(ports).tofile(file := Path(path).parent / "rows-for-scales")
    return file


def one(network, worker, ours, port, watch, options):
    """A network at some rows."""
    rows, made = worker.rows, {} if worker.failed else worker.said.get("sides", {})
    asked = network.asked.get(rows, Asked())
    figure = {"network": network.name, "rows": rows, "asked": str(asked), "build_s": ours.ready["ready"]}
    if "reference" in worker.said:
        ports, reference = worker.said["reference"]
        answers = {name: answer for name, (_, answer) in made.items()}
        answers[OURS] = ours.output(ports, rows, port)
        figure["errors"] = {name: error(answer, reference) for name, answer in answers.items()}

    def turn():
        began = time.monotonic()
        return turns.Turn(ours.ms(rows, options.seconds), began, time.monotonic(), 0.0)

    sides = {name: lambda name=name: worker.ms(name, options.seconds) for name in made}
    figure |= turns.measure(sides, (OURS, turn), options.rounds, watch)
    figure["medians"] = {name: statistics.median(times) for name, times in figure["ms"].items()}
    theirs = {name: ms for name, ms in figure["medians"].items() if name != OURS}
    figure["best"] = min(theirs, key=theirs.get) if theirs else None
    if theirs:
        beside = zip(figure["ms"][figure["best"]], figure["ms"][OURS], strict=True)
        figure["ratio"] = statistics.median(theirs / ours for theirs, ours in beside)
        if rows in network.asked:
            figure["is_met"] = asked.is_met(figure["medians"][OURS], theirs[figure["best"]])
    if options.device != "cpu":
        figure |= ours.steps(rows)
    return figure


def error(answer, reference):
    """The worst row's, or of a single row the part of its own size."""
    if len(reference) > 1:
        return float(errors(answer, reference).max())
    return float(np.linalg.norm(answer - reference) / np.linalg.norm(reference))


def table(figures):
    return markdown(HEADER, [cells(figure) for figure in figures])


if __name__ == "__main__":
    sys.exit(main())
