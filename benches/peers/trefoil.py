"""trefoil's side: runs its binaries and reads what they write. No torch here."""

import json
import os
import select
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from turns import Turn, timed

ROOT = Path(__file__).resolve().parents[2]


def default_folder():
    """Where the binaries are: `bin` in a bundle, else where cargo puts them."""
    bundle = ROOT / "bin"
    return bundle if bundle.is_dir() else ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"


class Trefoil:
    """The binaries of one build, on one device."""

    def __init__(self, folder, device):
        self.folder, self.device = Path(folder), device

    def binary(self, name):
        """A binary in the folder, or among the examples below it, where cargo puts them."""
        for path in (self.folder / name, self.folder / "examples" / name):
            if path.is_file():
                return path
        raise SystemExit(f"no binary `{name}` in {self.folder} or {self.folder}/examples; name the folder with --bin")

    def outputs(self, model, images, batch):
        """Logits of u8 images [N, H, W, 3] in batches of `batch`: fp32 [N, classes]."""
        with tempfile.TemporaryDirectory() as temp:
            path = Path(temp) / "logits.f32"
            self._run_tensor(model, images, path, batch, "--output", "logits")
            return _rows(path, len(images))

    def nodes(self, model, images, batch, names):
        """Values of graph nodes, fp32 [N, -1] (NHWC), by name."""
        with tempfile.TemporaryDirectory() as temp:
            path = Path(temp) / "value"
            listed = Path(temp) / "nodes.txt"
            listed.write_text("\n".join(names) + "\n")
            self._run_tensor(model, images, path, batch, "--nodes", listed)
            return {name: _rows(Path(f"{path}.{name}"), len(images)) for name in names}

    def calibrate(self, model, photos, folder):
        """Writes `model` in bytes to `folder`, all layers of it, with scales of a folder of photos."""
        options = ["--method", "percentile", "--most-error", "1", "--out", folder]
        subprocess.run([self.binary("trefoil"), "calibrate", model, photos, *options], check=True)

    def bench(self, model, batch, seconds, stage="compute"):
        """One run of `trefoil bench`, that stage alone: its turn, and everything it said."""
        said, when = timed([
            str(self.binary("trefoil")), "bench", "--model", str(model), "--device", self.device,
            "--batch", str(batch), "--only", stage, "--seconds", str(seconds), "--json",
        ], seconds)  # fmt: skip
        record = bench_record(said, batch, stage)
        return Turn(record["seconds_median"] * 1e3, *when), record

    def _run_tensor(self, model, images, output, batch, *more):
        source = output.with_suffix(".u8")
        np.ascontiguousarray(images).tofile(source)
        self._run("run_tensor", model, source, output, "--device", self.device, "--batch", batch, *more)

    def _run(self, name, *arguments):
        command = [str(self.binary(name)), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


class InTurns:
    """A model that stays open in `examples/in_turns.rs` and is timed whenever it is told to."""

    LIMIT_S = 120  # for an answer

    def __init__(self, trefoil, model, rows, *options):
        listed = ",".join(map(str, rows))
        command = [str(trefoil.binary("in_turns")), str(model), listed, f"device={trefoil.device}", *options]
        self._errors = tempfile.TemporaryFile("w+")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, bufsize=1)
        try:
            self.ready = self._answer()
        except RuntimeError:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ms(self, rows, seconds):
        """Milliseconds of a batch, of runs that take so many seconds in all."""
        return self._ask("time", rows, seconds)["ms"]

    def steps(self, rows, runs=20):
        """Steps with their times and rooflines."""
        return self._ask("steps", rows, runs)

    def output(self, arrays, rows, port=""):
        """What a port, or the first one, answers to a batch of so many rows: the arrays' rows again and again. Arrays are
        by the names of ports, or by their types. fp32 [rows, elements], of the arrays' rows."""
        records = self.records(arrays)
        count = len(records)
        [found, *_] = [out for out in self.ready["output"]["ports"] if port in ("", out["name"])]
        with tempfile.TemporaryDirectory() as temp:
            read, written = Path(temp) / "in", Path(temp) / "out"
            records[np.arange(rows) % count].tofile(read)
            self._ask("run", rows, read, written)
            result = np.fromfile(written, np.uint8).reshape(rows, -1)[:count]
        size = 4 * int(np.prod(found["dims"]))
        return np.ascontiguousarray(result[:, found["offset"] : found["offset"] + size]).view(np.float32)

    def records(self, arrays):
        """The bytes of rows, an array of each port by the port's name or type."""
        count = len(next(iter(arrays.values())))
        records = np.zeros((count, self.ready["input"]["row_bytes"]), np.uint8)
        for given in self.ready["input"]["ports"]:
            array = arrays[given["name"] if given["name"] in arrays else given["dtype"]]
            part = np.ascontiguousarray(array).reshape(count, -1).view(np.uint8)
            records[:, given["offset"] : given["offset"] + part.shape[1]] = part
        return records

    def _ask(self, *words):
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        ready, _, _ = select.select([self._process.stdout], [], [], self.LIMIT_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"in_turns: {self._errors.read()[:1000] or 'no answer'}")
        return json.loads(line)


def bench_record(text, batch, stage):
    """The record of one batch size and stage out of what `bench --json` prints: an object a line."""
    records = [json.loads(line) for line in text.splitlines() if line.lstrip().startswith("{")]
    found = [r for r in records if r.get("batch") == batch and r.get("stage") == stage]
    if len(found) != 1 or not found[0].get("seconds_median", 0) > 0:
        raise SystemExit(f"expected one line with batch {batch}, stage {stage} and seconds_median, found:\n{text}")
    return found[0]


def _rows(path, rows):
    values = np.fromfile(path, dtype="<f4")
    if values.size == 0 or values.size % rows:
        raise SystemExit(f"{path} has {values.size} values, which is not {rows} rows")
    return values.reshape(rows, -1)
