#!/usr/bin/env python3
"""Where does the compute time go, layer by layer? Reads a SQLite export of an nsys report.

    layers.py REPORT.sqlite [--skip 0.25] [--json FILE] [--top N] [--rooflines FILE]

The run must have been profiled with `-t cuda,nvtx --cuda-graph-trace=node` (`profile.sh -t node`): then every kernel of
a graph is in the report with its node. trefoil names each layer with an NVTX range while it captures its graphs, and
nsys notes when each node was made; so a node is the layer whose range it was made in. A launched graph is a copy of the
captured one: a copied node names the one it comes from.

Tables and columns, as the export has them:
- CUPTI_ACTIVITY_KIND_KERNEL: start, end, graphNodeId, streamId, globalPid (a kernel that ran)
- CUDA_GRAPH_NODE_EVENTS: start, globalTid, graphNodeId, originalGraphNodeId (a node made or copied)
- NVTX_EVENTS: start, end, text or textId, globalTid (a range; `LAYER \u00b7 KERNEL` or `graph (slot S, batch N)`)
- StringIds: id, value

Start and end of the run are left out (`--skip` of it each, by default a quarter). Times are microseconds, the mean over
the runs; the share is of the kernels' time of that batch size. A kernel may start before the one in front of it has
ended, and then waits for it: its time begins where that one ends, so that no time counts twice and the sum is what the
graph takes but for gaps.

`--rooflines` takes what `trefoil inspect MODEL --device cuda:N --batch B --json` prints, and puts beside each layer of that
batch size what it takes at least, with sums and the ratio of the two.
"""

import argparse
import json
import re
import sqlite3
import statistics
import sys
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path

SEPARATOR = " \u00b7 "
GRAPH = re.compile(r"graph \(slot (\d+), batch (\d+)\)$")
PROFILE_SO = "profile with `-t cuda,nvtx --cuda-graph-trace=node` (profile.sh -t node)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--skip", type=float, default=0.25, help="part of the run to leave out at each end")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--top", type=int, help="only the N layers that take longest")
    parser.add_argument("--rooflines", type=Path, help="what `trefoil inspect --json` printed for the batch size")
    options = parser.parse_args()
    if not options.report.is_file():
        raise SystemExit(f"no file {options.report}")
    figures = summarise(Report(options.report), options.skip)
    if options.rooflines:
        add_rooflines(figures["graphs"], json.loads(options.rooflines.read_text()))
    for graph in figures["graphs"]:
        print(text(graph, options.top))
    if figures["without_layer"]:
        print(f"{figures['without_layer']} of {figures['kernels']} kernels were made in no layer's range")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


class Report:
    """The tables of an export that are needed; one that is missing ends the program with what to do about it."""

    def __init__(self, path):
        self.database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        self.tables = {name for (name,) in self.database.execute("SELECT name FROM sqlite_master")}

    def columns(self, table):
        return {row[1] for row in self.database.execute(f"PRAGMA table_info({table})")}

    def rows(self, table, columns, why):
        if table not in self.tables:
            raise SystemExit(f"the report has no table {table}: {why}; {PROFILE_SO}")
        missing = set(columns) - self.columns(table)
        if missing:
            raise SystemExit(f"{table} has no column {', '.join(sorted(missing))}: an export of another version of nsys")
        names = ", ".join(f'"{column}"' for column in columns)
        return self.database.execute(f"SELECT {names} FROM {table}").fetchall()

    def kernels(self):
        """(start, end, process, node) of the kernels that graphs launched; one that waits for the kernel in front of it
        in its stream starts when that has ended."""
        columns = ["start", "end", "globalPid", "graphNodeId", "streamId"]
        rows = self.rows("CUPTI_ACTIVITY_KIND_KERNEL", columns, "no kernels ran")
        ended, launched = {}, []
        for start, end, owner, node, stream in sorted(rows, key=lambda row: (row[1], row[0])):
            start = min(end, max(start, ended.get((owner, stream), start)))
            ended[owner, stream] = end
            if node:
                launched.append((start, end, owner, node))
        if not launched:
            raise SystemExit(f"no kernel in the report has a graph node: graphs were traced as one, or not; {PROFILE_SO}")
        return launched

    def nodes(self):
        """(start, thread, node, node it was copied from), in order."""
        columns = ["start", "globalTid", "graphNodeId", "originalGraphNodeId"]
        rows = self.rows("CUDA_GRAPH_NODE_EVENTS", columns, "the making of graphs was not traced")
        return sorted(rows, key=lambda row: row[0])

    def ranges(self):
        """(start, end, thread, name) of the ranges that trefoil makes while it captures."""
        rows = self.rows("NVTX_EVENTS", ["start", "end", "globalTid", "text", "textId"], "names were not traced")
        strings = dict(self.database.execute("SELECT id, value FROM StringIds")) if "StringIds" in self.tables else {}
        named = [(start, end, thread, words or strings.get(number)) for start, end, thread, words, number in rows]
        found = [r for r in named if r[1] is not None and r[3] and (SEPARATOR in r[3] or GRAPH.match(r[3]))]
        if not any(SEPARATOR in name for *_, name in found):
            raise SystemExit(f"no range in the report names a layer: {PROFILE_SO}")
        return found


class Ranges:
    """Finds the range that a moment lies in; those of one kind and thread do not overlap."""

    def __init__(self, ranges):
        self.by_thread = defaultdict(list)
        for start, end, thread, name in sorted(ranges):
            self.by_thread[thread].append((start, end, name))

    def at(self, thread, moment):
        ranges = self.by_thread.get(thread, [])
        index = bisect_right(ranges, moment, key=lambda found: found[0]) - 1
        return ranges[index] if index >= 0 and moment <= ranges[index][1] else None


def process(thread):
    """The process of a serialised thread, as kernels have it: the thread's own bits are zero."""
    return thread & ~0xFFFFFF


def layers_of_nodes(report):
    """(process, node) → (batch size, moment in the capture, layer, kernel)."""
    ranges = report.ranges()
    layers = Ranges([found for found in ranges if SEPARATOR in found[3]])
    graphs = Ranges([found for found in ranges if GRAPH.match(found[3])])
    made, copied = {}, {}
    for start, thread, node, original in report.nodes():
        key = (process(thread), node)
        if original:
            copied[key] = (process(thread), original)
        layer, graph = layers.at(thread, start), graphs.at(thread, start)
        if layer and key not in made:
            name, kernel = layer[2].rsplit(SEPARATOR, 1)
            batch = int(GRAPH.match(graph[2]).group(2)) if graph else None
            made[key] = (batch, layer[0] - (graph[0] if graph else 0), name, kernel)

    def origin(key):
        for _ in range(16):  # a copy of a copy; never a circle
            if key in made or key not in copied:
                break
            key = copied[key]
        return made.get(key)

    return origin


def summarise(report, skip):
    kernels = report.kernels()
    begin, finish = min(row[0] for row in kernels), max(row[1] for row in kernels)
    margin = int((finish - begin) * skip)
    inside = [row for row in kernels if row[0] >= begin + margin and row[1] <= finish - margin]
    origin = layers_of_nodes(report)
    times, order, without = defaultdict(list), {}, 0
    for start, end, owner, node in inside:
        found = origin((owner, node))
        if found is None:
            without += 1
            continue
        batch, moment, layer, kernel = found
        times[batch, layer, kernel].append((end - start) / 1e3)
        order[batch, layer, kernel] = min(moment, order.get((batch, layer, kernel), moment))
    if not times:
        raise SystemExit(f"of {len(inside)} kernels none was made in a layer's range: {PROFILE_SO}")
    graphs = [graph(batch, times, order) for batch in sorted({key[0] for key in times}, key=lambda b: b or 0)]
    return {"kernels": len(inside), "without_layer": without, "graphs": graphs}


def graph(batch, times, order):
    """The layers of one batch size in the order of their launches."""
    keys = sorted((key for key in times if key[0] == batch), key=order.get)
    total = sum(sum(times[key]) for key in keys)
    layers = [
        {
            "layer": key[1],
            "kernel": key[2],
            "runs": len(times[key]),
            "mean_us": statistics.fmean(times[key]),
            "median_us": statistics.median(times[key]),
            "share": sum(times[key]) / total,
        }
        for key in keys
    ]
    return {"batch": batch, "sum_of_means_us": sum(layer["mean_us"] for layer in layers), "layers": layers}


def add_rooflines(graphs, planned):
    """Adds to the layers of the batch size that was planned what each takes at least."""
    rooflines = {row["step"]: row["roofline"]["us"] for row in planned["steps"] if row["roofline"]}
    found = [graph for graph in graphs if graph["batch"] == planned["batch"]]
    if not rooflines or not found:
        raise SystemExit(f"no rooflines, or no graph of batch {planned['batch']} in the report")
    for graph in found:
        missing = [layer["layer"] for layer in graph["layers"] if layer["layer"] not in rooflines]
        if missing or len(rooflines) != len(graph["layers"]):
            raise SystemExit(f"the rooflines are of another plan: {', '.join(missing) or 'it has more steps'}")
        for layer in graph["layers"]:
            layer["roofline_us"] = rooflines[layer["layer"]]
            layer["ratio"] = layer["mean_us"] / layer["roofline_us"]
        graph["sum_of_rooflines_us"] = sum(layer["roofline_us"] for layer in graph["layers"])
        graph["ratio"] = graph["sum_of_means_us"] / graph["sum_of_rooflines_us"]


def text(graph, top):
    layers = graph["layers"]
    if top:
        layers = sorted(layers, key=lambda layer: -layer["share"])[:top]
    wide = max(len("layer"), *(len(layer["layer"]) for layer in layers))
    batch = "of unknown size" if graph["batch"] is None else graph["batch"]
    has_rooflines = "ratio" in graph
    lines = [
        f"batch {batch}: {len(graph['layers'])} layers, {graph['sum_of_means_us']:.1f} us of kernels a run",
        f"{'layer':<{wide}}  {'mean us':>9} {'median':>9} {'share':>7} {'runs':>6}"
        + (f" {'roofline us':>11} {'ratio':>6}" if has_rooflines else "")
        + "  kernel",
    ]
    for layer in layers:
        lines.append(
            f"{layer['layer']:<{wide}}  {layer['mean_us']:>9.2f} {layer['median_us']:>9.2f} {100 * layer['share']:>5.1f} %"
            f" {layer['runs']:>6}"
            + (f" {layer['roofline_us']:>11.2f} {layer['ratio']:>6.2f}" if has_rooflines else "")
            + f"  {layer['kernel']}"
        )
    if has_rooflines:
        worst = max(graph["layers"], key=lambda layer: layer["ratio"])
        lines.append(
            f"sum of times {graph['sum_of_means_us']:.1f} us, of rooflines {graph['sum_of_rooflines_us']:.1f} us: "
            f"{graph['ratio']:.3f}; the furthest from its roofline is {worst['layer']}, {worst['ratio']:.2f}"
        )
    by_kernel = defaultdict(float)
    for layer in graph["layers"]:
        by_kernel[layer["kernel"]] += layer["share"]
    shares = sorted(by_kernel.items(), key=lambda entry: -entry[1])
    lines.append("by kernel: " + ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
