"""Tests of tables: python3 -m unittest discover benches/peers"""

import unittest

import figures
from figures import OURS, Asked


def figure(ours, theirs, **more):
    steps = [("product", "a", 50.0, 10.0), ("product", "a", 30.0, 10.0), ("loop", "b", 60.0, 5.0), ("mean", "c", 3.0, 3.0),
             ("pool", "d", 9.0, 2.0)]  # fmt: skip
    names = ["operation", "kernel", "us", "roofline_us"]
    return {
        "network": "net",
        "rows": 32,
        "asked": "1.5x",
        "medians": {"eager": 9.0, "inductor": theirs, OURS: ours},
        "best": "inductor",
        "ratio": theirs / ours,
        "is_met": Asked(1.5).is_met(ours, theirs),
        "graph_us": 140.0,
        "steps": [dict(zip(names, step, strict=True)) for step in steps],
        **more,
    }


class Figures(unittest.TestCase):
    def test_what_is_asked_for(self):
        self.assertTrue(Asked(1.5).is_met(2.0, 3.0))
        self.assertFalse(Asked(1.5).is_met(2.0, 2.9))
        self.assertTrue(Asked(ms=0.3).is_met(0.3, 0.1))
        self.assertFalse(Asked(ms=0.3).is_met(0.31, 9.0))
        self.assertEqual([str(Asked(1.3)), str(Asked(ms=0.25)), str(Asked())], ["1.3x", "0.25 ms", "-"])

    def test_misses_name_the_steps_that_are_farthest_beyond_their_rooflines(self):
        self.assertEqual(figures.misses([figure(1.0, 3.0)]), "")
        self.assertEqual(
            figures.misses([figure(1.0, 1.2)]),
            "- net, 32 (140 us): 2 x product, a: 80 us (20); 1 x loop, b: 60 us (5); 1 x pool, d: 9 us (2)",
        )

    def test_a_row_has_the_best_peer_and_the_sum_over_rooflines(self):
        errors = {OURS: 0.02, "inductor": 0.01, "eager": 0.5}
        cells = figures.cells(figure(1.0, 1.2, errors=errors))
        self.assertEqual(cells[2:8], ["1.0000", "1.2000", "inductor", "1.20", "1.5x", "no"])
        self.assertEqual(cells[8:], ["2.0e-02", "1.0e-02", "5.07"])

    def test_an_error_is_marked_if_it_is_far_beyond_the_peers(self):
        mark = lambda ours, theirs: figures.cells(figure(1, 2, errors={OURS: ours, "inductor": theirs}))[8][-1]
        self.assertEqual([mark(0.05, 0.01), mark(0.02, 0.01), mark(0.009, 0.001)], ["!", "2", "3"])

    def test_without_a_peer_there_is_no_ratio(self):
        alone = figure(1.0, 1.2) | {"best": None, "medians": {OURS: 1.0}, "is_met": None, "ratio": None}
        self.assertEqual(figures.cells(alone)[2:8], ["1.0000", "-", "-", "-", "1.5x", "-"])


if __name__ == "__main__":
    unittest.main()
