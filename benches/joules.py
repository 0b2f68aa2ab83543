#!/usr/bin/env python3
"""Images for each joule of a GPU, by nvidia-smi, while `trefoil bench` runs:

    python3 benches/joules.py trefoil bench --only compute --batch 256 --seconds 4 --model FOLDER

Runs the command with `--json`, samples the first GPU's power and clock 50 times a second, and prints for each stage that
is reported the images a second, the mean power and clock of the second half of its time, and images a joule. Idle
power is in it; the host's is not.
"""

import json
import subprocess
import sys
import threading
import time

QUERY = ["nvidia-smi", "-i", "0", "--query-gpu=power.draw.instant,clocks.sm", "--format=csv,noheader,nounits", "-lms", "20"]


def sample(process, samples):
    """Appends (time, watts, MHz) for each line."""
    for line in process.stdout:
        watts, clock = line.split(",")
        samples.append((time.monotonic(), float(watts), float(clock)))


def second_half(samples, end, seconds):
    """The samples of the second half of what took so long until then."""
    return [of for of in samples if end - seconds / 2 <= of[0] <= end]


def main():
    command = sys.argv[1:]
    if not command:
        sys.exit(__doc__)
    monitor = subprocess.Popen(QUERY, stdout=subprocess.PIPE, text=True)
    samples = []
    threading.Thread(target=sample, args=(monitor, samples), daemon=True).start()
    bench = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True)
    print(f"{'stage':>10} {'batch':>6} {'images/s':>10} {'W':>6} {'MHz':>6} {'images/J':>9} {'samples':>8}")
    for line in bench.stdout:
        end, figure = time.monotonic(), json.loads(line)
        taken = figure["samples"] * figure["batches_per_sample"] * figure["seconds_median"]
        seen = second_half(samples, end, taken)
        if not seen:
            sys.exit(f"no sample of nvidia-smi in {taken:.2f} s: measure longer, with --seconds")
        watts, clock = (sum(of[column] for of in seen) / len(seen) for column in (1, 2))
        rate = figure["images_per_second"]
        print(
            f"{figure['stage']:>10} {figure['batch']:>6} {rate:>10.0f} {watts:>6.0f} {clock:>6.0f} "
            f"{rate / watts:>9.1f} {len(seen):>8}"
        )
    monitor.terminate()
    sys.exit(bench.wait())


if __name__ == "__main__":
    main()
