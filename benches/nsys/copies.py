#!/usr/bin/env python3
"""What crossed the link in a part of a profiled run? Reads a SQLite export of an nsys report.

    copies.py REPORT.sqlite [RANGE]

The part is the NVTX range of that name, by default `steady`; where there is none, from the first to the last copy on the
device. Says how many copies of each kind there were. The exit code is 1 if any was between host and device.
"""

import sqlite3
import sys

KINDS = {1: "host to device", 2: "device to host", 8: "on the device", 10: "between devices"}  # CUPTI's numbers


def part(database, name):
    tables = {row[0] for row in database.execute("select name from sqlite_master")}
    if "NVTX_EVENTS" in tables:
        found = database.execute(
            "select start, end from NVTX_EVENTS left join StringIds on id = textId "
            "where end is not null and coalesce(text, value) = ?", (name,)).fetchone()
        if found:
            return found
    return database.execute("select min(start), max(end) from CUPTI_ACTIVITY_KIND_MEMCPY where copyKind = 8").fetchone()


def main(report, name="steady"):
    database = sqlite3.connect(report)
    begin, end = part(database, name)
    if begin is None:
        sys.exit(f"no range {name} and no copy on the device")
    copies = database.execute(
        "select copyKind, count(*), sum(bytes), avg(end - start) from CUPTI_ACTIVITY_KIND_MEMCPY "
        "where end > ? and start < ? group by copyKind", (begin, end)).fetchall()
    print(f"{(end - begin) / 1e6:.2f} ms")
    for kind, count, size, took in copies:
        print(f"{KINDS.get(kind, f'kind {kind}')}: {count} copies, {size / 1e6:.1f} MB, {took / 1e3:.2f} us each")
    crossed = sum(count for kind, count, *_ in copies if kind in (1, 2))
    print(f"{crossed} copies between host and device")
    return crossed != 0


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
