"""trefoil's side: runs its binaries and reads what they write. No torch here."""

import json
import os
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
