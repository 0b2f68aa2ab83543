"""plot.py on a small record, and on those that are kept: python3 -m unittest discover benches/peers"""

import json
import re
import unittest
from pathlib import Path
from xml.etree import ElementTree

import plot

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def record(floor_ms):
    times = {"a <b>": [4.0, 2.0, 3.0], "trefoil": [1.0, 1.0, 2.0]}
    state = {"round": 0, "sm_mhz": 1700.0, "celsius": 60.0, "samples": 20}
    return {
        "date": "2026-01-02T03:04:05+00:00", "commit": "0123456789ab", "gpu": "GPU & co", "driver": "1.2", "torch": "2.3",
        "cudnn": 90000, "model": "resnet50", "dtype": "fp16", "rounds": 3, "floor": "unfused layers",
        "batches": {"8": {"floor_ms": floor_ms, "ms": times, "gpu": [{**state, "side": side} for side in times]}},
    }  # fmt: skip


def drawn(record):
    root = ElementTree.fromstring(plot.svg(record))
    bars = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") != "paper"]
    return root, bars, [text.text for text in root.iter(f"{SVG}text")]


class Plot(unittest.TestCase):
    def test_bars_are_medians_beside_the_floor(self):
        root, bars, texts = drawn(record(floor_ms=0.8))
        # 8 images in 1 ms and in 3 ms, to a scale that ends with 8 in 0.8 ms.
        widths = [float(bar.get("width")) for bar in bars]
        for width, expected in zip(widths, [0.8 * plot.WIDTH, 0.8 / 3 * plot.WIDTH], strict=True):
            self.assertAlmostEqual(width, expected, delta=0.1)
        self.assertEqual([bar.get("class") for bar in bars], ["c0", "c1"])
        self.assertIn("8,000", texts)
        self.assertIn("trefoil, 1 ms", texts)
        # 4, 2 and 1.5 times as fast in the three rounds.
        self.assertIn("a <b>, 3 ms; trefoil is 2.00x as fast (1.50-4.00)", texts)
        self.assertIn("floor 10,000", texts)
        self.assertIn("during their turns: a <b> 1700 MHz, 60 C; trefoil 1700 MHz, 60 C", texts)
        (spread, _) = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("class") == "spread"]
        begin, end = map(float, re.fullmatch(r"M([\d.]+) [\d.]+H([\d.]+)", spread).groups())
        self.assertAlmostEqual(begin, plot.GAP + 0.4 * plot.WIDTH, delta=0.1)
        self.assertAlmostEqual(end, plot.GAP + 0.8 * plot.WIDTH, delta=0.1)

    def test_a_floor_far_away_is_told_and_not_drawn(self):
        root, bars, texts = drawn(record(floor_ms=0.1))
        self.assertAlmostEqual(float(bars[0].get("width")), plot.WIDTH, delta=0.1)
        self.assertIn("floor, not in the picture: 80,000", texts)
        self.assertFalse([path for path in root.iter(f"{SVG}path") if path.get("class") == "level"])

    def test_a_side_beyond_the_floor_has_the_whole_width(self):
        root, bars, texts = drawn(record(floor_ms=1.25))
        self.assertAlmostEqual(float(bars[0].get("width")), plot.WIDTH, delta=0.1)
        self.assertIn("floor 6,400", texts)
        (level,) = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("class") == "level"]
        self.assertAlmostEqual(float(re.match(r"M([\d.]+)", level).group(1)), plot.GAP + 0.8 * plot.WIDTH, delta=0.1)

    def test_kept_records_fit_their_page(self):
        kept = sorted((ROOT / "benches/records").glob("*/resnet*.json"))
        self.assertGreater(len(kept), 4)
        for path in kept:
            root, bars, _ = drawn(json.loads(path.read_text()))
            self.assertTrue(bars and all(0 < float(bar.get("width")) <= plot.WIDTH + 0.1 for bar in bars), path)
            (height,) = [float(rect.get("height")) for rect in root.iter(f"{SVG}rect") if rect.get("class") == "paper"]
            self.assertTrue(all(0 < float(text.get("y")) < height for text in root.iter(f"{SVG}text")), path)

    def test_colours_are_the_program_s(self):
        source = (ROOT / "src/bin/trefoil/bench/plot.rs").read_text()
        listed = source.split("const COLOURS", 1)[1].split("\n];", 1)[0]
        self.assertEqual(re.findall(r'"(#\w+)", "(#\w+)"', listed), plot.COLOURS)
        for colour in re.findall(r"#\w{6}", plot.LIGHT + plot.DARK):
            self.assertIn(colour, source)


if __name__ == "__main__":
    unittest.main()
