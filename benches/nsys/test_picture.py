"""picture.py on a small export: python3 -m unittest discover benches/nsys"""

import sqlite3
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

import picture

SVG = "{http://www.w3.org/2000/svg}"


class Picture(unittest.TestCase):
    def test_spans_of_the_part_are_drawn_and_cut_at_its_ends(self):
        with tempfile.TemporaryDirectory() as folder:
            report, out = Path(folder) / "report.sqlite", Path(folder) / "out.svg"
            database = sqlite3.connect(report)
            database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
            database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, copyKind)")
            database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, nameId, globalTid)")
            database.execute("INSERT INTO StringIds VALUES (1, 'cuEventSynchronize_v2')")
            # Microseconds: an upload over the part's end, a download before it, a wait inside, one too short to see.
            us = 1000
            copies = [(0, 10 * us, 2), (1990 * us, 2100 * us, 1)]
            database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?)", copies)
            waits = [(1500 * us, 1700 * us, 1, 7), (1800 * us, 1801 * us, 1, 8)]
            database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)", waits)
            database.commit()
            picture.main(report, out, "1", "1")
            drawn = ElementTree.parse(out).getroot()
        found = {rect.get("class"): rect for rect in drawn.iter(f"{SVG}rect") if rect.get("class") != "paper"}
        self.assertEqual(sorted(found), ["in", "wait"])
        self.assertEqual(found["in"].find(f"{SVG}title").text, "copy-in: 110.0 us")
        a_microsecond = (picture.WIDTH - picture.LEFT - 10) / 1000
        self.assertAlmostEqual(float(found["in"].get("width")), 10 * a_microsecond - 0.6, delta=0.1)
        self.assertAlmostEqual(float(found["wait"].get("width")), 200 * a_microsecond - 0.6, delta=0.1)
        self.assertAlmostEqual(float(found["wait"].get("x")), picture.LEFT + 500 * a_microsecond, delta=0.1)


if __name__ == "__main__":
    unittest.main()
