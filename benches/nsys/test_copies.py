"""copies.py on small exports: python3 -m unittest discover benches/nsys"""

import contextlib
import io
import sqlite3
import tempfile
import unittest
from pathlib import Path

import copies


class Copies(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.report = Path(folder.name) / "report.sqlite"
        self.database = sqlite3.connect(self.report)
        self.database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        self.database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, copyKind, bytes)")
        self.copy((0, 10, 1), (20, 30, 8), (40, 50, 8), (90, 95, 2))  # up, twice on the device, down

    def copy(self, *rows):
        self.database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, 1000000)", rows)
        self.database.commit()

    def read(self, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            crossed = copies.main(self.report, *arguments)
        return crossed, said.getvalue()

    def test_between_the_first_and_last_copy_on_the_device(self):
        crossed, said = self.read()
        self.assertFalse(crossed)
        self.assertIn("on the device: 2 copies, 2.0 MB", said)
        self.copy((35, 36, 2))
        crossed, said = self.read()
        self.assertTrue(crossed)
        self.assertIn("1 copies between host and device", said)

    def test_in_a_range(self):
        self.database.execute("CREATE TABLE NVTX_EVENTS (start, end, text, textId)")
        self.database.execute("INSERT INTO StringIds VALUES (5, 'steady')")
        self.database.execute("INSERT INTO NVTX_EVENTS VALUES (15, 60, NULL, 5), (0, 100, 'all', NULL)")
        self.database.commit()
        self.assertFalse(self.read()[0])
        self.assertTrue(self.read("all")[0])


if __name__ == "__main__":
    unittest.main()
