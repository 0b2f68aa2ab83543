#!/usr/bin/env python3
"""A record of compare.py as a plot, drawn as `trefoil bench` draws: bars of images/s, readable on light and on dark.

    python3 benches/peers/plot.py RECORD.json [OUT.svg]

A bar for each side of each batch size: the median over the rounds, with a line from the slowest round to the fastest.
No torch here.
"""

import json
import statistics
import sys
from html import escape
from pathlib import Path

# The sizes and colours of src/bin/trefoil/bench/plot.rs.
WIDTH, GAP, PAGE, PRINT, LINE, BAR = 380, 24, 474, 78, 18, 42
COLOURS = [
    ("#0969da", "#58a6ff"),
    ("#bc4c00", "#f0883e"),
    ("#1a7f37", "#56d364"),
    ("#8250df", "#bc8cff"),
    ("#9a6700", "#e3b341"),
    ("#bf3989", "#f778ba"),
]
LIGHT = """\
svg { font: 12px system-ui, sans-serif; max-width: 100%; height: auto; }
.paper { fill: #ffffff; } .ink { fill: #1f2328; } .small { fill: #59636e; font-size: 11px; } .title { font-size: 14px; }
.level { stroke: #59636e; stroke-dasharray: 2 3; } .spread { stroke: #1f2328; }
"""
DARK = """\
.paper { fill: #0d1117; } .ink { fill: #f0f6fc; } .small { fill: #9198a1; }
.level { stroke: #9198a1; } .spread { stroke: #f0f6fc; }
"""
OURS = "trefoil"


def svg(record):
    """The drawing as text."""
    drawing = _Drawing()
    drawing.text(GAP, 26, "ink title", f"{record['model']}: images/s of compute, {OURS} beside its peers")
    drawing.top = 28
    drawing.small(f"{record['gpu']}, driver {record['driver']}, torch {record['torch']}, cuDNN {record['cudnn']}, commit "
                  f"{record['commit']}, {record['date'][:10]}; {record['dtype']}; input on the device, no upload")  # fmt: skip
    drawing.small(f"bars: median of {record['rounds']} rounds, slowest to fastest; dotted: floor of {record['floor']}")
    for batch, measured in record["batches"].items():
        _batch(drawing, int(batch), measured)
    return drawing.whole(f"{record['model']} on {record['gpu']}")


def _batch(drawing, batch, measured):
    """The bars of one batch size, to a scale of their own."""
    times = measured["ms"]
    floor = batch / measured["floor_ms"] * 1e3
    rates = {name: [batch / ms * 1e3 for ms in each] for name, each in times.items()}
    # Where the floor is far from everything, bars are worth more than it. A bar may be beyond it: it is that of layers by
    # themselves, and fused ones read and write less.
    fastest = max(max(each) for each in rates.values())
    scale = WIDTH / (max(floor, fastest) if floor <= 2 * fastest else fastest)
    drawing.top += 2 * LINE
    drawing.text(GAP, drawing.top, "ink title", f"batch {batch}")
    drawing.small(_state(measured["gpu"]))
    begin = drawing.top + 4
    # Ours first, then the peers as they were measured.
    for index, name in enumerate(sorted(times, key=lambda name: name != OURS)):
        drawing.top += BAR
        y = drawing.top - BAR
        median, low, high = (of(rates[name]) for of in (statistics.median, min, max))
        drawing.text(GAP, y + 18, "ink", _label(name, times))
        drawing.add(f'<rect class="c{index % len(COLOURS)}" x="{GAP}" y="{y + 23}" width="{median * scale:.1f}" height="16"/>')
        ends = (GAP + low * scale, GAP + high * scale)
        drawing.add(f'<path class="spread" d="M{ends[0]:.1f} {y + 31}H{ends[1]:.1f}"/>')
        drawing.text(GAP + max(median, high) * scale + 6, y + 36, "ink", f"{median:,.0f}")
    drawing.top += LINE
    if floor * scale <= WIDTH + 0.5:
        x = GAP + floor * scale
        drawing.add(f'<path class="level" d="M{x:.1f} {begin}V{drawing.top - 8}"/>')
        drawing.text(x, drawing.top + 6, "small", f"floor {floor:,.0f}", "end")
    else:
        drawing.text(GAP, drawing.top + 6, "small", f"floor, not in the picture: {floor:,.0f}")


def _label(name, times):
    """A side, its time, and how much faster ours was in the same rounds."""
    said = f"{name}, {statistics.median(times[name]):.4g} ms"
    if name == OURS or OURS not in times:
        return said
    ratios = [theirs / ours for theirs, ours in zip(times[name], times[OURS])]
    return f"{said}; {OURS} is {statistics.median(ratios):.2f}x as fast ({min(ratios):.2f}-{max(ratios):.2f})"


def _state(states):
    """Clock and temperature of each side's turns."""
    said = []
    for side in dict.fromkeys(state["side"] for state in states):
        clocks = [state["sm_mhz"] for state in states if state["side"] == side and "sm_mhz" in state]
        heat = [state["celsius"] for state in states if state["side"] == side and "celsius" in state]
        if clocks and heat:
            said.append(f"{side} {statistics.median(clocks):.0f} MHz, {statistics.median(heat):.0f} C")
    when = "during" if any("samples" in state for state in states) else "after"
    return f"{when} their turns: {'; '.join(said)}" if said else "clocks and temperature are not known"


class _Drawing:
    """Elements from the top down."""

    def __init__(self):
        self.top, self._elements = 0, []

    def add(self, element):
        self._elements.append(element)

    def text(self, x, y, kind, text, anchor="start"):
        self.add(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def small(self, text):
        """Small print, broken between words."""
        lines = [""]
        for word in text.split():
            if lines[-1] and len(lines[-1]) + 1 + len(word) > PRINT:
                lines.append(word)
            else:
                lines[-1] = f"{lines[-1]} {word}".lstrip()
        for line in lines:
            self.top += LINE
            self.text(GAP, self.top, "small", line)

    def whole(self, title):
        height = self.top + GAP
        light, dark = ("".join(f".c{i} {{ fill: {pair[scheme]}; }}\n" for i, pair in enumerate(COLOURS)) for scheme in (0, 1))
        style = f"<style>\n{LIGHT}{light}@media (prefers-color-scheme: dark) {{\n{DARK}{dark}}}\n</style>"
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PAGE} {height}" width="{PAGE}" height="{height}" '
                f'role="img">\n<title>{escape(title)}</title>')  # fmt: skip
        paper = f'<rect class="paper" width="{PAGE}" height="{height}"/>'
        return "\n".join([head, style, paper, *self._elements, "</svg>\n"])


def main(source, out=None):
    out = Path(out) if out else Path(source).with_suffix(".svg")
    out.write_text(svg(json.loads(Path(source).read_text())))


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
