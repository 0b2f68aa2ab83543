"""Sides in turn, each after the same pause, and what the GPU did meanwhile. No torch here."""

import statistics
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass

import record

EVERY_MS = 50  # that the GPU is asked
_HELD = "clocks_held_by"


@dataclass
class Turn:
    """One measurement of a side, and when it was made, by time.monotonic()."""

    ms: float  # of a batch
    begin: float
    end: float
    pause: float  # that the GPU was idle before it, in seconds


def measure(peers, ours, rounds, watch):
    """Each side once in each round, in rotating order: milliseconds by side, and the GPU's state in each turn.

    `peers` maps names to functions that measure at once and return milliseconds; `ours` is a name with a function that
    returns a Turn. Ours is a program that starts first, and the GPU cools meanwhile: so does it before a peer's turn, for
    as long as that took the last time. A first run of ours, which may find files and kernels cold, is not counted.
    """
    our_name, our_turn = ours
    pause = our_turn().pause
    names = [*peers, our_name]
    times, states = {name: [] for name in names}, []
    for index in range(rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            if name == our_name:
                turn = our_turn()
                pause = turn.pause
            else:
                time.sleep(pause)
                begin = time.monotonic()
                ms = peers[name]()
                turn = Turn(ms, begin, time.monotonic(), pause)
            times[name].append(turn.ms)
            seconds = {"pause_s": round(turn.pause, 3), "measured_s": round(turn.end - turn.begin, 3)}
            states.append({"side": name, "round": index, **seconds, **watch.between(turn.begin, turn.end)})
    return {"ms": times, "gpu": states}


class Watch:
    """Clocks, temperature and power of a GPU every 50 ms, until it is closed; nothing where there is no nvidia-smi."""

    def __init__(self, index=0):
        self._seen, self._process, self._thread = [], None, None
        self._names = record.known_fields(index)
        if self._names:
            command = record.query_command(index, self._names, f"--loop-ms={EVERY_MS}")
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        if self._process:
            self._process.terminate()
            self._process.wait()
            self._thread.join()
            self._process.stdout.close()

    def between(self, begin, end):
        """The median of each figure between two times, with the least and the most, and how many were seen."""
        seen = [state for at, state in list(self._seen) if begin <= at <= end]
        summary = {"samples": len(seen)}
        for name in record.STATE.values():
            values = [state[name] for state in seen if name in state]
            if not values:
                continue
            if name == _HELD:
                summary[name] = sorted({str(value) for value in values})
                continue
            summary |= {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
        return summary

    def _read(self):
        for line in self._process.stdout:
            state = record.state_of(self._names, line.split(","))
            self._seen.append((time.monotonic(), state))


def timed(command, seconds):
    """Runs a command that measures for so many seconds and then says so at once, in a line of JSON: what it printed, and
    begin, end and pause of that turn. What goes before is its start."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            lines = [(time.monotonic(), line) for line in process.stdout]
        text = "".join(line for _, line in lines)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{' '.join(command)}\nexit code {process.returncode}\n{text}{errors.read()}")
    end = max((at for at, line in lines if line.lstrip().startswith("{")), default=time.monotonic())
    begin = max(started, end - seconds)
    return text, (begin, end, begin - started)
