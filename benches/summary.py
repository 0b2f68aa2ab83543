#!/usr/bin/env python3
"""The records of a folder in few lines: summary.py FOLDER. Every figure but "compute alone" has the upload in it."""

import json
import sys
from pathlib import Path


def main():
    folder = Path(sys.argv[1])
    known = {"overlap": overlap, "forum": forum, "forum-peers": peers, "clients": clients, "server": server}
    found = 0
    for name, show in known.items():
        path = folder / f"{name}.json"
        if not path.is_file() or not path.stat().st_size:
            continue
        record = json.loads(path.read_text())
        device = record.get("device_name") or record.get("gpu")
        print(f"\n{name}: {device}, commit {record['commit']}, {record['date']}, {record.get('model')}")
        for line in show(record):
            print(f"  {line}")
        found += 1
    if not found:
        raise SystemExit(f"no records in {folder}")


def overlap(record):
    rows = record["figures"]["rows"]
    yield f"{'regime':<14}{'batch':>6}{'slots':>6}{'slowest':>10}{'ms':>9}{'ratio':>7}{'predicted off':>15}{'gain':>7}"
    for row in rows:
        if row["slots"] not in (1, 3) and len(rows) > 12:
            continue
        gain = f"{row['gain']:.2f}x" if row["gain"] else "-"
        yield (f"{row['regime']:<14}{row['batch']:>6}{row['slots']:>6}{row['slowest']:>10}"
               f"{row['slowest_seconds'] * 1e3:>9.3f}{row['ratio']:>7.3f}{row['deviation_percent']:>+13.1f} %{gain:>7}")  # fmt: skip
    worst = max(rows, key=lambda row: abs(row["deviation_percent"]))
    yield f"the prediction is off by at most {worst['deviation_percent']:+.1f} %: {place(worst)}"
    least = min((row for row in rows if row["slots"] >= 3), key=lambda row: row["ratio"], default=None)
    if least:
        yield f"the least ratio with three slots or more is {least['ratio']:.3f}: {place(least)}"


def place(row):
    return f"{row['regime']}, batch {row['batch']}, {row['slots']} slots"


def forum(record):
    for row in record["figures"]["rows"]:
        yield (f"{row['format']:<9}{row['start']:<12}{row['name']:<37}{row['images_per_second']:>9.0f} images/s, "
               f"{row['ratio']:.3f} of compute alone")  # fmt: skip


def peers(record):
    best = {}
    for row in record["rows"]:
        kind = (row["side"], row["pixels"], row["start"])
        if kind not in best or row["images_per_second"] > best[kind]["images_per_second"]:
            best[kind] = row
    for (side, pixels, start), row in best.items():
        yield (f"{side:<9}{pixels:<9}{start:<12}best {row['images_per_second']:>9.0f} images/s, "
               f"{row['ratio_to_best_peer']:.2f}x the best peer: {row['order']}")  # fmt: skip


def clients(record):
    figures = record["figures"]
    for row in figures["rows"]:
        held = "within" if row["within_bound"] else "beyond"
        yield (f"{row['threads']:>4} threads{row['images_per_second']:>9.0f} images/s, {row['ratio']:.3f} of the ring, "
               f"p50 {row['p50_seconds'] * 1e3:.2f} p99 {row['p99_seconds'] * 1e3:.2f} ms, {held} the bound of "
               f"{figures['p99_bound_seconds'] * 1e3:.2f} ms, mean batch {row['mean_batch']:.1f}")  # fmt: skip


def server(record):
    figures = record["figures"]
    best, limit = figures["best_images_per_second"], figures["limit_seconds"] * 1e3
    if best is None:
        yield f"no rate tried kept p99 within {limit:.1f} ms"
        return
    step = next(s for s in figures["ladder"] if s["images_per_second"] == best)
    yield (f"{best:.0f} images/s with p99 within {limit:.1f} ms ({figures['ratio']:.3f} of the ring): p50 "
           f"{step['p50_seconds'] * 1e3:.2f}, p99 {step['p99_seconds'] * 1e3:.2f} ms, mean batch {step['mean_batch']:.1f}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
