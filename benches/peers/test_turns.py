"""turns.py with an nvidia-smi and programs made for it: python3 -m unittest discover benches/peers"""

import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import turns

# One that knows no power, writes to its log how often it was started, and heats up by a degree each time it is asked.
SMI = """#!/bin/sh
echo start >>"$0.log"
for argument; do case $argument in
    --query-gpu=*) fields=${argument#*=} ;;
    --loop-ms=*) loop=${argument#*=} ;;
esac; done
case $fields in *power.draw*) echo "Field power.draw is not a valid field"; exit 2 ;; esac
celsius=40
while :; do
    line=
    for field in $(echo "$fields" | tr , ' '); do
        case $field in
            clocks.sm) value=1980 ;;
            clocks.mem) value="[N/A]" ;;
            temperature.gpu) value=$celsius ;;
            *) value=0x0000000000000004 ;;
        esac
        line="$line${line:+, }$value"
    done
    echo "$line"
    [ -n "$loop" ] || exit 0
    celsius=$((celsius + 1))
    sleep 0.02
done
"""


def path_of(folder):
    return mock.patch.dict(os.environ, {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"})


def wait_for(watch, samples):
    until = time.monotonic() + 60
    while watch.between(0, time.monotonic())["samples"] < samples:
        if time.monotonic() > until:
            raise AssertionError(f"not {samples} samples in a minute")
        time.sleep(0.01)


class NoWatch:
    def between(self, _begin, _end):
        return {"samples": 0}


class Watching(unittest.TestCase):
    def test_what_the_gpu_did_in_a_turn_is_summed_up(self):
        with tempfile.TemporaryDirectory() as folder:
            smi = Path(folder) / "nvidia-smi"
            smi.write_text(SMI)
            smi.chmod(0o755)
            with path_of(folder):
                with turns.Watch() as watch:
                    wait_for(watch, 3)
                    started = smi.with_suffix(".log").read_text().count("start")
                    begin = time.monotonic()
                    wait_for(watch, 6)
                    end = time.monotonic()
                    wait_for(watch, 9)
                    inside, before, nothing = watch.between(begin, end), watch.between(0, begin), watch.between(end, end)
                    everything = watch.between(0, time.monotonic())
                self.assertEqual(smi.with_suffix(".log").read_text().count("start"), started, "one for all samples")
        self.assertGreater(inside["samples"], 1)
        self.assertEqual((inside["sm_mhz"], inside["sm_mhz_min"], inside["sm_mhz_max"]), (1980, 1980, 1980))
        self.assertLess(before["celsius_max"], inside["celsius_min"])
        self.assertLess(inside["celsius_max"], everything["celsius_max"])
        self.assertTrue(inside["celsius_min"] < inside["celsius"] < inside["celsius_max"])
        self.assertEqual(inside["clocks_held_by"], ["0x0000000000000004"])
        self.assertFalse({"watt", "memory_mhz"} & inside.keys(), "what nvidia-smi does not know is missing")
        self.assertEqual(nothing, {"samples": 0})

    def test_without_nvidia_smi_nothing_is_seen(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"PATH": folder}):
            with turns.Watch() as watch:
                self.assertEqual(watch.between(0, time.monotonic()), {"samples": 0})


class Turns(unittest.TestCase):
    def test_each_side_comes_once_a_round_in_rotating_order_after_the_pause_that_ours_took(self):
        order, pauses = [], iter([0.5, 0.01, 0.07, 0.03])

        def ours():
            order.append("ours")
            return turns.Turn(2.0, 0.0, 1.0, next(pauses))

        def peer(name, ms):
            return lambda: order.append(name) or ms

        peers = {"a": peer("a", 3.0), "b": peer("b", 5.0)}
        with mock.patch.object(turns.time, "sleep") as sleep:
            result = turns.measure(peers, ("ours", ours), 3, NoWatch())
        self.assertEqual(order, ["ours"] + ["a", "b", "ours"] + ["b", "ours", "a"] + ["ours", "a", "b"])
        self.assertEqual([call.args[0] for call in sleep.call_args_list], [0.5, 0.5, 0.01, 0.07, 0.03, 0.03])
        self.assertEqual(result["ms"], {"a": [3.0] * 3, "b": [5.0] * 3, "ours": [2.0] * 3})
        said = [(state["side"], state["round"], state["pause_s"]) for state in result["gpu"]]
        self.assertEqual(said[:4], [("a", 0, 0.5), ("b", 0, 0.5), ("ours", 0, 0.01), ("b", 1, 0.01)])

    def test_a_program_s_turn_is_what_ends_with_its_line(self):
        says = "import time; time.sleep(0.3); print('starting', flush=True); time.sleep(0.2); print('{}', flush=True); "
        text, (begin, end, pause) = turns.timed([sys.executable, "-c", says + "time.sleep(0.3)"], 0.2)
        self.assertEqual(text, "starting\n{}\n")
        self.assertAlmostEqual(end - begin, 0.2)
        self.assertLess(end, time.monotonic() - 0.25)
        self.assertTrue(0.25 < pause < 10, pause)

    def test_a_program_that_fails_is_quoted(self):
        with self.assertRaisesRegex(SystemExit, "(?s)exit code 3.*out.*why"):
            turns.timed([sys.executable, "-c", "import sys; print('out'); print('why', file=sys.stderr); sys.exit(3)"], 1)


if __name__ == "__main__":
    unittest.main()
