#!/usr/bin/env python3
"""How much of the copying happens under compute? Reads a SQLite export of an nsys report.

    overlap.py REPORT.sqlite [--skip 0.25] [--json FILE] [--at-least PERCENT]

Start and end of the run are left out (`--skip` of it each, by default a quarter, so the middle half is looked at). Says
how long compute and each copy direction were busy, how much of the copy time lies under compute, how busy the busiest
of the three was, and what the host called meanwhile. Apart from that it lists what a steady state must not have: waits
for a whole stream or device, allocations, loads, synchronous copies, copies of pageable memory. With `--at-least`, less
overlap or any of those makes the exit code 1.

Compute is kernels, or whole graphs where graphs were traced as one (`nsys profile --cuda-graph-trace=graph`).
"""

import argparse
import json
import re
import sqlite3
import sys
from pathlib import Path

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2  # CUPTI's copy kinds
PAGEABLE = 0  # CUPTI's memory kind

# Host calls that a steady state must not have.
FORBIDDEN = {
    "waits for a stream or device": r"(Stream|Device|Ctx|Context)Synchronize",
    "allocations and frees": r"(Mem|Host|Array|Pool)\w*(Alloc|Free)|^cuda(Malloc|Free)|HostRegister|HostUnregister"
    r"|(Stream|Event|MemPool)(Create|Destroy)",
    "loads": r"(Module|Library|Link|Kernel)\w*Load|LinkCreate|GraphInstantiate|ModuleUnload|LibraryUnload",
    "synchronous copies": r"^(cu|cuda)Mem(cpy|set)(?!.*Async)",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--skip", type=float, default=0.25, help="part of the run to leave out at each end")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--at-least", type=float, metavar="PERCENT", help="copy time under compute that is asked for")
    options = parser.parse_args()
    if not options.report.is_file():
        raise SystemExit(f"no file {options.report}")
    figures = summarise(Report(options.report), options.skip)
    print(text(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.at_least is None:
        return 0
    good = figures["copy_under_compute_percent"] >= options.at_least and not figures["forbidden"]
    print("PASS" if good else f"FAIL: asked for {options.at_least} % and nothing forbidden")
    return 0 if good else 1


class Report:
    """The tables of an export; one that is not there counts as empty."""

    def __init__(self, path):
        self.database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        self.tables = {name for (name,) in self.database.execute("SELECT name FROM sqlite_master")}

    def rows(self, table, columns):
        if table not in self.tables:
            return []
        return self.database.execute(f"SELECT {columns} FROM {table}").fetchall()

    def compute(self):
        kernels = self.rows("CUPTI_ACTIVITY_KIND_KERNEL", "start, end")
        return kernels + self.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "start, end")

    def copies(self):
        """(start, end, direction, bytes, source memory, destination memory)"""
        return self.rows("CUPTI_ACTIVITY_KIND_MEMCPY", "start, end, copyKind, bytes, srcKind, dstKind")

    def calls(self, start, end):
        """How often each host call began in a span, most frequent first; nothing if calls were not traced."""
        if "CUPTI_ACTIVITY_KIND_RUNTIME" not in self.tables:
            return None
        query = """SELECT value, COUNT(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
                   JOIN StringIds ON StringIds.id = call.nameId
                   WHERE call.start BETWEEN ? AND ? GROUP BY value ORDER BY COUNT(*) DESC"""
        return dict(self.database.execute(query, (start, end)))


def summarise(report, skip):
    """All figures, times in milliseconds."""
    compute, copies = report.compute(), report.copies()
    if not compute or not copies:
        raise SystemExit("the report has no compute or no copies")
    begin = min(row[0] for row in compute + copies)
    finish = max(row[1] for row in compute + copies)
    margin = int((finish - begin) * skip)
    start, end = begin + margin, finish - margin
    inside = [copy for copy in copies if copy[1] > start and copy[0] < end]
    direction = lambda kind: covered([copy[:2] for copy in inside if copy[2] == kind], start, end)
    busy = {
        "compute": covered(compute, start, end),
        "host to device": direction(HOST_TO_DEVICE),
        "device to host": direction(DEVICE_TO_HOST),
    }
    both_ways = covered(busy["host to device"] + busy["device to host"], start, end)
    hidden = total(both_ways) + total(busy["compute"]) - total(covered(both_ways + busy["compute"], start, end))
    calls = report.calls(start, end)
    return {
        "span_ms": (end - start) / 1e6,
        "busy_ms": {name: total(spans) / 1e6 for name, spans in busy.items()},
        "copy_ms": total(both_ways) / 1e6,
        "copied_bytes": sum(copy[3] for copy in inside),
        "copy_under_compute_percent": 100 * hidden / max(1, total(both_ways)),
        "busiest_percent": 100 * max(map(total, busy.values())) / max(1, end - start),
        "calls": calls,
        "forbidden": forbidden(calls, inside),
    }


def covered(spans, start, end):
    """The parts of [start, end) that the spans cover: disjoint and in order."""
    merged = []
    for low, high in sorted((max(low, start), min(high, end)) for low, high, *_ in spans):
        if high <= low:
            continue
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def total(spans):
    return sum(high - low for low, high in spans)


def forbidden(calls, copies):
    """What a steady state must not have, by kind; empty when all is well."""
    found = {}
    if calls is None:
        found["host calls were not traced"] = {"profile with -t cuda": 1}
    for kind, pattern in FORBIDDEN.items():
        matching = {name: count for name, count in (calls or {}).items() if re.search(pattern, name)}
        if matching:
            found[kind] = matching
    pageable = sum(1 for *_, source, destination in copies if PAGEABLE in (source, destination))
    if pageable:
        found["copies of pageable memory"] = {"copies": pageable}
    return found


def text(figures):
    listed = lambda counts: ", ".join(f"{name} {count}" for name, count in counts.items())
    busy = ", ".join(f"{name} {ms:.3f}" for name, ms in figures["busy_ms"].items())
    bad = [f"  {kind}: {listed(counts)}" for kind, counts in figures["forbidden"].items()]
    lines = [
        f"span {figures['span_ms']:.3f} ms; busy, ms: {busy}; {figures['copied_bytes'] / 1e6:.1f} MB copied",
        f"copy time under compute: {figures['copy_under_compute_percent']:.1f} %",
        f"busiest engine: {figures['busiest_percent']:.1f} % of the span",
        f"host calls: {listed(figures['calls'] or {}) or 'none seen'}",
        "not allowed in a steady state: " + ("\n" + "\n".join(bad) if bad else "none seen"),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
