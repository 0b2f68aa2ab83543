#!/usr/bin/env python3
"""A part of a profiled run as a picture. Reads a SQLite export of an nsys report, writes an SVG, light and dark.

    picture.py REPORT.sqlite OUT.svg [MILLISECONDS [AT]]

The part is so many milliseconds long (default 1), from AT on, in milliseconds since the first copy (default: the middle
of the copies). Rows are the GPU's copies in either direction and its graphs or kernels, then the host threads of the
part: NVTX ranges of batches, and waits for events.
"""

import sqlite3
import sys
from html import escape

WIDTH, LEFT, ROW, GAP = 960, 130, 22, 6
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #1f2328; } .in { fill: #2da44e; } .out { fill: #cf222e; }
.compute { fill: #0969da; } .submit { fill: #8250df; } .wait { fill: #d0d7de; } .paper { fill: #fff; }
.axis { stroke: #8c959f; }
@media (prefers-color-scheme: dark) { text { fill: #f0f6fc; } .in { fill: #3fb950; } .out { fill: #f85149; }
.compute { fill: #4493f8; } .submit { fill: #ab7df8; } .wait { fill: #3d444d; } .paper { fill: #0d1117; } }
@media (max-width: 560px) { text { font-size: 26px; } }
</style>"""


def spans(database, query, begin, end):
    """Rows (start, end, …) of `query` that touch the part; none if the export has no such table."""
    try:
        touching = f"select * from ({query}) where end > ? and start < ? order by start"
        return database.execute(touching, (begin, end)).fetchall()
    except sqlite3.OperationalError:
        return []


def rows(database, begin, end):
    """Names of rows with their spans: (start, end, class)."""
    copy = "select start, end from CUPTI_ACTIVITY_KIND_MEMCPY where copyKind = {}"
    graphs = spans(database, "select start, end from CUPTI_ACTIVITY_KIND_GRAPH_TRACE", begin, end)
    kernels = spans(database, "select start, end from CUPTI_ACTIVITY_KIND_KERNEL", begin, end)
    yield "copy-in", [(*span, "in") for span in spans(database, copy.format(1), begin, end)]
    yield "compute", [(*span, "compute") for span in graphs or kernels]
    yield "copy-out", [(*span, "out") for span in spans(database, copy.format(2), begin, end)]
    batches = "select start, end, globalTid from NVTX_EVENTS where end is not null and text like 'batch %'"
    waits = ("select start, end, globalTid from CUPTI_ACTIVITY_KIND_RUNTIME join StringIds on id = nameId "
             "where value like 'cuEventSynchronize%' and end - start > 5000")
    threads = {}
    for query, what in (waits, "wait"), (batches, "submit"):
        for start, stop, thread in spans(database, query, begin, end):
            threads.setdefault(thread, []).append((start, stop, what))
    for number, thread in enumerate(sorted(threads), 1):
        yield f"thread {number}", threads[thread]


def draw(database, milliseconds, at):
    first, last = database.execute("select min(start), max(end) from CUPTI_ACTIVITY_KIND_MEMCPY").fetchone()
    if first is None:
        sys.exit("no copies in the report")
    length = milliseconds * 1e6
    begin = first + at * 1e6 if at is not None else (first + last - length) / 2
    scale = (WIDTH - LEFT - 10) / length
    parts, y = [], 10
    for name, found in rows(database, begin, begin + length):
        parts.append(f'<text x="8" y="{y + 15}">{escape(name)}</text>')
        for start, end, what in found:
            x0, x1 = (LEFT + (min(max(t, begin), begin + length) - begin) * scale for t in (start, end))
            title = f"{name}: {(end - start) / 1e3:.1f} us"
            parts.append(f'<rect class="{what}" x="{x0:.1f}" y="{y}" width="{max(x1 - x0 - 0.6, 0.6):.1f}" '
                         f'height="{ROW}" rx="2"><title>{escape(title)}</title></rect>')
        y += ROW + GAP
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y}" y2="{y}"/>')
    for tick in range(5):
        x = LEFT + tick * (WIDTH - LEFT - 10) / 4
        anchor, time = "end" if tick == 4 else "middle", 1e3 * milliseconds * tick / 4
        parts.append(f'<text x="{x:.0f}" y="{y + 16}" text-anchor="{anchor}">{time:g} us</text>')
    y += 26
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img">\n{STYLE}\n'
            f'<rect class="paper" width="{WIDTH}" height="{y}"/>\n' + "\n".join(parts) + "\n</svg>\n")


def main(report, out, milliseconds="1", at=None):
    picture = draw(sqlite3.connect(report), float(milliseconds), None if at is None else float(at))
    with open(out, "w", encoding="utf-8") as file:
        file.write(picture)


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
