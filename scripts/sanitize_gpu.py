#!/usr/bin/env python3
"""Kernels under compute-sanitizer: bad accesses, races in shared memory, barriers that not all threads reach, reads of
memory that nothing has written.

    sanitize.py kernels [CASES_OF_A_KERNEL]     the cases of bin/gpu_tests, or so many of each kernel
    sanitize.py models FOLDER                   bin/trefoil run on each line of FOLDER/models.txt: a file, options of `run`
    options: --tools A,B  --filter TEXT  --skip TEXT  --parts N  --from PART  --jobs N  --seconds S  --each S  --logs FOLDER

Each process runs a part of the cases, or one model, on the GPU that has the fewest processes. A part that takes too much memory is ended and runs again as two
halves, so that no tool runs out of memory. Ends with a table; what did not finish is named, counts as no all-clear, and
makes the exit code 1 as an error does. Needs Python 3.9 or newer and nothing else; scripts/gpu_bundle.sh puts it beside the
binaries.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]
SANITIZER = ["compute-sanitizer", "--error-exitcode", "99", "--show-backtrace", "no", "--print-limit", "25"]
GIB = 1 << 30
ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error[^,]*, (\d+) warn")
# Of a report: what happened, and in which kernel.
WHAT = re.compile(r"^========= (Error: Race|Warning: Race|Invalid|Uninitialized|Barrier error|Race reported|Program hit|"
                  r"Host API|Out-of-range|Unused|Potential|Misaligned|Divergent).*")
KERNEL = re.compile(r"^=========     at (?:0x[0-9a-f]+ in )?(?:\w+ )?([A-Za-z_]\w*)")
SHOWN = 30  # processes of which it is said what is wrong
SPLITS = 64  # parts of a part that may be made, at most


@dataclass
class Work:
    """One process to run, and what became of it."""

    tool: str
    name: str
    command: list
    part: tuple = (0, 1)  # of the cases, for those that can be halved
    variables: dict = field(default_factory=dict)
    halves: bool = False
    log: Path = Path()
    gpu: str = ""
    process: object = None
    started: float = 0.0
    most_bytes: int = 0
    code: int = None
    ended: str = ""  # why it was ended, where it was

    def start(self, logs, gpu):
        self.gpu = gpu
        index, parts = self.part
        label = re.sub(r"[^\w.-]", "_", f"{self.name}-{index}of{parts}" if self.halves else self.name)
        self.log = logs / f"{self.tool}-{label}.txt"
        variables = dict(os.environ, **self.variables, CUDA_VISIBLE_DEVICES=gpu)
        if self.halves:
            variables["TREFOIL_PART"] = f"{index}/{parts}"
        command = SANITIZER + ["--tool", self.tool] + self.command
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            env=variables, start_new_session=True)
        self.started = time.monotonic()

    def seconds(self):
        return time.monotonic() - self.started

    def end(self, why):
        self.ended = why
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def split(self):
        """The same cases in two processes."""
        index, parts = self.part
        return [Work(self.tool, self.name, self.command, (half, 2 * parts), self.variables, True)
                for half in (index, index + parts)]

    def text(self):
        return self.log.read_text(errors="replace")

    def cases(self):
        """Cases that passed, or one for a model that ran to its end."""
        return len(re.findall(r"^test .*\.\.\. ok$", self.text(), re.M)) if self.halves else int(self.finished())

    def finished(self):
        """Whether the program itself came to its end, and the tool to its summary."""
        said = r"^test result: ok\." if self.halves else r"^rows    "
        text = self.text()
        return not self.ended and bool(re.search(said, text, re.M)) and bool(ERRORS.search(text))

    def errors(self):
        found = ERRORS.findall(self.text())  # a second one counts those that were not printed
        return sum(int(number) for number in found[0] if number) if found else 0

    def reports(self):
        """What was reported first, and in which kernels."""
        lines = self.text().splitlines()
        what = [line[10:110] for line in lines if WHAT.match(line)]
        kernels = {match.group(1) for match in map(KERNEL.match, lines) if match}
        return f"{what[0] if what else 'see the log'} in {', '.join(sorted(kernels)[:6]) or '?'}"


def memory_of_groups(groups):
    """Resident bytes of the processes of each group."""
    found = dict.fromkeys(groups, 0)
    page = os.sysconf("SC_PAGE_SIZE")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue  # it has ended
        group = int(fields[2])
        if group in found:
            found[group] += int(fields[21]) * page
    return found


def free_bytes():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def gpus():
    """The numbers of the GPUs that processes may use."""
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ["0"]
    return [str(index) for index, _ in enumerate(listed.splitlines())]


def run_all(waiting, args):
    """Runs them, some at a time; each one that was started, in the order of its end."""
    of_gpus = gpus()
    running, done, end = [], [], time.monotonic() + args.seconds
    while waiting or running:
        while waiting and len(running) < args.jobs and (not running or free_bytes() > args.memory):
            work, users = waiting.pop(0), [work.gpu for work in running]
            work.start(args.logs, min(of_gpus, key=users.count))
            running.append(work)
        time.sleep(0.2)
        memory = memory_of_groups([work.process.pid for work in running])
        for work in running[:]:
            work.most_bytes = max(work.most_bytes, memory[work.process.pid])
            work.code = work.process.poll()
            if work.code is not None:
                running.remove(work)
                done.append(work)
                if work.ended == "memory" and work.halves and work.part[1] < args.parts * SPLITS:
                    waiting[:0] = work.split()
                    done.remove(work)
            elif work.ended:
                continue
            elif work.most_bytes > args.memory:
                work.end("memory")
            elif work.seconds() > args.each:
                work.end(f"time, after {args.each:.0f} s")
            elif time.monotonic() > end:
                work.end("the end of all time")
        if time.monotonic() > end:
            for work in waiting:
                work.ended = "never started"
            done, waiting = done + waiting, []
    return done


def kernels(args):
    binary = str(args.bin / "gpu_tests")
    command = [binary, "--test-threads=1"] + ([args.filter] if args.filter else [])
    command += [word for text in args.skip for word in ("--skip", text)]
    variables = {"TREFOIL_REQUIRE_GPU": "1"} | ({"TREFOIL_SAMPLE": args.what[0]} if args.what else {})
    listed = subprocess.run([binary, "--list"] + command[2:], env=dict(os.environ, **variables), check=True,
                            capture_output=True, text=True).stdout
    count = listed.count(": test")
    print(f"{count} cases in {args.parts} parts")
    of_tool = {tool: variables | ({"TREFOIL_ONCE": "1"} if tool == "racecheck" else {}) for tool in args.tools}
    return [Work(tool, "kernels", command, (index, args.parts), of_tool[tool], True)
            for index in range(args.first_part, args.parts) for tool in args.tools]


def models(args):
    folder = Path(args.what[0])
    lines = [line.split("#")[0] for line in (folder / "models.txt").read_text().splitlines()]
    asked = [shlex.split(line) for line in lines if line.strip() and (args.filter or "") in line]
    print(f"{len(asked)} models")
    run = [str(args.bin / "trefoil"), "run", "--device", "cuda:0", "--tune", "off"]
    return [Work(tool, file, run + [str(folder / file)] + options) for file, *options in asked for tool in args.tools]


def table(done, tools):
    """Prints a line for each tool, and what is wrong; whether nothing is."""
    print(f"{'tool':<10} {'processes':>9} {'finished':>8} {'passed':>7} {'errors':>7} {'most memory':>12}")
    for tool in tools:
        of = [work for work in done if work.tool == tool]
        started = [work for work in of if work.process]
        most = max((work.most_bytes for work in started), default=0) / GIB
        finished, errors = sum(work.finished() for work in started), sum(work.errors() for work in started)
        passed = sum(work.cases() for work in started)
        print(f"{tool:<10} {len(of):>9} {finished:>8} {passed:>7} {errors:>7} {most:>8.1f} GiB")
    bad = [line for line in map(wrong, done) if line]
    bad += [f"{tool}: no case ran" for tool in tools if not sum(work.cases() for work in done if work.tool == tool and work.process)]
    print("\n".join(bad[:SHOWN] + [f"and {len(bad) - SHOWN} more"] * (len(bad) > SHOWN)))
    return not bad


def wrong(work):
    """What is wrong with a process, in a line; nothing if it found nothing."""
    name = f"{work.tool}, {work.name}" + (f" {work.part[0]}/{work.part[1]}" if work.halves else "")
    if not work.process:
        return f"{name}: never started"
    if work.errors():
        return f"{name}: {work.errors()} errors: {work.reports()}"
    if work.finished():
        return f"{name}: came to its end, with exit {work.code}" if work.code else ""
    last = [line for line in work.text().splitlines() if line.strip()][-1:]
    return f"{name}: did not finish: {work.ended or f'exit {work.code}'}: {''.join(last)[:160]}"


def main():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["kernels", "models"])
    parser.add_argument("what", nargs="*")
    parser.add_argument("--tools", default=",".join(TOOLS), type=lambda text: text.split(","))
    parser.add_argument("--filter")
    parser.add_argument("--skip", action="append", default=[], help="of kernels: the cases that have this in their names")
    parser.add_argument("--parts", type=int, default=8, help="processes that the cases are divided among, for each tool")
    parser.add_argument("--from", type=int, default=0, dest="first_part", help="the first of these parts to run (default 0)")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="processes at a time")
    parser.add_argument("--seconds", type=float, default=3600, help="for everything")
    parser.add_argument("--each", type=float, default=900, help="for each process")
    parser.add_argument("--memory", type=float, default=48, help="GiB of host memory for each process")
    parser.add_argument("--logs", type=Path, default=Path("sanitize-logs"))
    parser.add_argument("--bin", type=Path, default=here / "bin")
    args = parser.parse_args()
    unknown = [tool for tool in args.tools if tool not in TOOLS]
    if unknown or len(args.what) > 1 or (args.mode == "models" and not args.what):
        parser.error(f"no tool is called {unknown[0]}" if unknown else "expected kernels [CASES] or models FOLDER")
    args.memory *= GIB
    args.logs.mkdir(parents=True, exist_ok=True)
    args.logs, args.bin = args.logs.resolve(), args.bin.resolve()
    args.what = [str(Path(what).resolve()) if args.mode == "models" else what for what in args.what]
    os.chdir(args.bin.parent)  # where the tests find weights and data
    began = time.monotonic()
    done = run_all({"kernels": kernels, "models": models}[args.mode](args), args)
    good = table(done, args.tools)
    print(f"{time.monotonic() - began:.0f} s; logs in {args.logs}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
