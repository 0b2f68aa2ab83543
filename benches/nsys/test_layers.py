"""layers.py on small exports: python3 -m unittest discover benches/nsys"""

import sqlite3
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import layers

TABLES = {
    "StringIds": "id INTEGER, value TEXT",
    "NVTX_EVENTS": "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER",
    "CUDA_GRAPH_NODE_EVENTS": "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER, graphNodeId INTEGER,"
    " originalGraphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER, end INTEGER, globalPid INTEGER, graphNodeId INTEGER, streamId INTEGER",
}
PROCESS = 7 << 24
THREAD = PROCESS | 42


def export(path, without=()):
    """Two graphs, of batch 1 and 8, of two layers each; the nodes that run are copies, one a copy of a copy."""
    database = sqlite3.connect(path)
    for table, columns in TABLES.items():
        if table not in without:
            database.execute(f"CREATE TABLE {table} ({columns})")

    def insert(table, rows):
        if table not in without:
            database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)

    insert("StringIds", [(1, "conv1 \u00b7 sm80_conv")])
    insert(
        "NVTX_EVENTS",
        [
            (0, 100, 59, "graph (slot 0, batch 1)", None, THREAD),
            (10, 20, 59, None, 1, THREAD),
            (30, 40, 59, "fc \u00b7 linear", None, THREAD),
            (200, 300, 59, "graph (slot 0, batch 8)", None, THREAD),
            (210, 220, 59, "conv1 \u00b7 sm80_conv", None, THREAD),
            (230, 240, 59, "fc \u00b7 linear", None, THREAD),
            (15, None, 75, "trefoil", None, THREAD),
            (0, 400, 59, "another program's range", None, THREAD + 1),
        ],
    )
    nodes = [(15, 1, None), (35, 2, None), (215, 3, None), (235, 4, None)]
    nodes += [(90, 11, 1), (90, 12, 2), (290, 13, 3), (290, 14, 4), (295, 24, 14)]
    insert("CUDA_GRAPH_NODE_EVENTS", [(at, at, THREAD, 1, node, original) for at, node, original in nodes])
    # Node 24 starts while 13 runs, and waits for it.
    runs = [(11, 0, 30), (12, 30, 40), (13, 40, 130), (24, 100, 140), (99, 140, 145), (None, 145, 146)]
    insert(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        [(at * 10**6 + start * 1000, at * 10**6 + end * 1000, PROCESS, node, 7) for at in range(1, 4) for node, start, end in runs]
        + [(at * 10**6, at * 10**6 + 10**5, PROCESS, None, 8) for at in range(1, 4)],
    )
    database.commit()
    database.close()


class Layers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "report.sqlite"

    def test_kernels_get_the_layers_that_their_nodes_were_made_in(self):
        export(self.path)
        figures = layers.summarise(layers.Report(self.path), 0)
        one, eight = figures["graphs"]
        self.assertEqual((one["batch"], eight["batch"]), (1, 8))
        self.assertEqual([layer["layer"] for layer in one["layers"]], ["conv1", "fc"])
        self.assertEqual([layer["mean_us"] for layer in one["layers"]], [30.0, 10.0])
        self.assertEqual([layer["share"] for layer in eight["layers"]], [0.9, 0.1])
        self.assertEqual([layer["runs"] for layer in eight["layers"]], [3, 3])
        self.assertEqual((figures["kernels"], figures["without_layer"]), (15, 3))
        table = layers.text(eight, None)
        self.assertIn("batch 8: 2 layers, 100.0 us", table)
        self.assertIn("sm80_conv 90.0 %", table)

    def test_rooflines_stand_beside_the_layers_of_their_batch_size(self):
        export(self.path)
        rooflines = [{"step": "conv1", "roofline": {"us": 60.0}}, {"step": "fc", "roofline": {"us": 20.0}}]
        graphs = layers.summarise(layers.Report(self.path), 0)["graphs"]
        layers.add_rooflines(graphs, {"batch": 8, "steps": rooflines})
        one, eight = graphs
        self.assertNotIn("ratio", one)
        self.assertEqual([layer["ratio"] for layer in eight["layers"]], [1.5, 0.5])
        self.assertEqual((eight["sum_of_rooflines_us"], eight["ratio"]), (80.0, 1.25))
        self.assertIn("of rooflines 80.0 us: 1.250; the furthest from its roofline is conv1, 1.50", layers.text(eight, None))
        for wrong in [{"batch": 2, "steps": rooflines}, {"batch": 8, "steps": rooflines[:1]}, {"batch": 8, "steps": []}]:
            with self.assertRaises(SystemExit):
                layers.add_rooflines(graphs, wrong)

    def test_what_is_missing_is_said(self):
        for table in ["NVTX_EVENTS", "CUDA_GRAPH_NODE_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL"]:
            self.path.unlink(missing_ok=True)
            export(self.path, without=[table])
            said = self.run_on_report()
            self.assertIn(table, said)
            self.assertIn("--cuda-graph-trace=node", said)
        self.path.unlink()
        export(self.path)
        database = sqlite3.connect(self.path)
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET graphNodeId = NULL")
        database.commit()
        database.close()
        self.assertIn("traced as one", self.run_on_report())

    def run_on_report(self):
        script = Path(layers.__file__)
        ended = subprocess.run([sys.executable, script, self.path], capture_output=True, text=True)
        self.assertEqual(ended.returncode, 1, ended)
        self.assertNotIn("Traceback", ended.stderr)
        return ended.stderr


if __name__ == "__main__":
    unittest.main()
