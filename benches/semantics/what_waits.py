#!/usr/bin/env python3
"""What waits for what in CUDA and in libtorch: the experiments behind docs/semantics.md.

    python3 benches/semantics/what_waits.py [--record r.json]

Needs a GPU and torch. Each experiment is a few milliseconds of copies and of a kernel that spins; the printed times are
medians over the rounds. Driver calls go to libcuda through ctypes, which releases the interpreter's lock meanwhile.
"""

import argparse
import ctypes
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))
import record  # noqa: E402

ROUNDS = 5
MIB = 1 << 20
SPIN_MS = 20.0
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status != 0:
        raise SystemExit(f"{name} failed with status {status}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, help="write the figures there as JSON")
    parser.add_argument("--commit", help="what to record as the commit")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU that torch can use")
    torch.cuda.init()
    bench = Bench()
    result = {**record.header(options.commit), "torch": torch.__version__, "spin_ms": bench.spin_alone}
    for experiment in [blocking_copy, waiting, pageable, reuse, torch_to, torch_pinned, torch_convert]:
        title = experiment.__doc__.strip()
        rows = experiment(bench)
        result[experiment.__name__] = {"question": title, "answers": rows}
        print(f"\n{title}")
        for what, value in rows.items():
            print(f"  {what:<78} {value if isinstance(value, str) else f'{value:8.2f} ms'}")
    if options.record:
        options.record.write_text(json.dumps(result, indent=1) + "\n")


class Bench:
    """A kernel that spins for a known time, buffers, and streams of each kind."""

    def __init__(self):
        self.bytes = 256 * MIB
        self.pinned = torch.empty(self.bytes, dtype=torch.uint8).pin_memory()
        self.pageable = torch.ones(self.bytes, dtype=torch.uint8)
        self.device = torch.empty(self.bytes, dtype=torch.uint8, device="cuda")
        self.own = [torch.cuda.Stream(), torch.cuda.Stream()]  # torch makes non-blocking ones
        self.blocking = torch.cuda.ExternalStream(create_stream(0))
        self.default = torch.cuda.default_stream()
        self.cycles = self.calibrate()
        self.spin_alone = self.median(lambda: self.timed(lambda: (self.spin(self.own[0]), self.own[0].synchronize())))

    def calibrate(self):
        cycles = 10_000_000
        torch.cuda._sleep(cycles)
        torch.cuda.synchronize()
        took = self.timed(lambda: (torch.cuda._sleep(cycles), torch.cuda.synchronize()))
        return int(cycles * SPIN_MS / took)

    def spin(self, stream, part=1.0):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(self.cycles * part))

    @staticmethod
    def timed(what):
        start = time.perf_counter()
        what()
        return (time.perf_counter() - start) * 1e3

    def median(self, what):
        values = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            values.append(what())
        torch.cuda.synchronize()
        return statistics.median(values)

    def upload(self, source, stream=None):
        """A raw driver copy of all bytes: blocking without a stream."""
        arguments = [ctypes.c_uint64(self.device.data_ptr()), ctypes.c_void_p(source.data_ptr())]
        arguments.append(ctypes.c_size_t(self.bytes))
        if stream is None:
            call("cuMemcpyHtoD_v2", *arguments)
        else:
            call("cuMemcpyHtoDAsync_v2", *arguments, ctypes.c_void_p(stream.cuda_stream))


def create_stream(flags):
    handle = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(flags))
    return handle.value


def in_thread(what):
    """Starts `what` in another thread that has torch's context."""

    def body():
        torch.cuda.current_stream().query()
        what()

    thread = threading.Thread(target=body)
    thread.start()
    return thread


def blocking_copy(bench):
    """Does a blocking copy in one thread hold up compute of another?"""
    one, two = bench.own

    def copy_and_wait():
        bench.upload(bench.pinned, two)
        two.synchronize()

    def behind_kernel(stream):
        def run():
            bench.spin(stream)
            return bench.timed(lambda: bench.upload(bench.pinned))

        return bench.median(run)

    def launched_during(what, stream):
        """Of a short kernel: how long its launch takes, and how long until it is done."""
        launches = []

        def run():
            other = in_thread(what)
            time.sleep(0.001)
            launches.append(bench.timed(lambda: bench.spin(stream, 0.05)))
            done = launches[-1] + bench.timed(stream.synchronize)
            other.join()
            return done

        done = bench.median(run)
        return f"{statistics.median(launches):8.2f} ms to launch, {done:.2f} ms till it is done"

    rows = {"cuMemcpyHtoD of 256 MiB, page-locked, nothing else running": bench.median(
        lambda: bench.timed(lambda: bench.upload(bench.pinned))
    )}  # fmt: skip
    for name, stream in {"the legacy default": bench.default, "a blocking": bench.blocking, "a non-blocking": one}.items():
        kernel = f"a kernel of {SPIN_MS / 20:.0f} ms on {name} stream, launched during"
        rows[f"that copy while a kernel of {SPIN_MS:.0f} ms runs on {name} stream"] = behind_kernel(stream)
        rows[f"{kernel} that copy"] = launched_during(lambda: bench.upload(bench.pinned), stream)
        rows[f"{kernel} cuMemcpyHtoDAsync and cuStreamSynchronize"] = launched_during(copy_and_wait, stream)
    sleep = ctypes.CDLL(None).usleep
    rows["the last, during a sleep in C: the interpreter's own part"] = launched_during(lambda: sleep(5000), one)
    return rows


def waiting(bench):
    """Does waiting for a forward wait for other threads' copies?"""
    rows = {}
    event = torch.cuda.Event()

    def case(wait, kernel_stream, copy_stream):
        def run():
            other = in_thread(lambda: [bench.upload(bench.pinned, copy_stream) for _ in range(4)])
            other.join()  # enqueued: 1 GiB on its way
            bench.spin(kernel_stream, 0.05)
            event.record(kernel_stream)
            return bench.timed(wait)

        return bench.median(run)

    one, two = bench.own
    forward = f"a kernel of {SPIN_MS / 20:.0f} ms, another thread's 1 GiB of copies in flight"
    rows[f"{forward}: device-wide synchronisation"] = case(torch.cuda.synchronize, one, two)
    rows[f"{forward}: stream synchronisation, own streams"] = case(one.synchronize, one, two)
    rows[f"{forward}: event, own streams"] = case(event.synchronize, one, two)
    rows[f"{forward}: event, both on the default stream"] = case(event.synchronize, bench.default, bench.default)
    return rows


def pageable(bench):
    """Is an asynchronous copy from ordinary memory asynchronous?"""
    stream = bench.own[0]
    rows = {}
    for name, source in [("page-locked", bench.pinned), ("pageable", bench.pageable)]:

        def idle(source=source):
            return bench.timed(lambda: bench.upload(source, stream))

        def behind(source=source):
            bench.spin(stream)
            return idle(source)

        rows[f"cuMemcpyHtoDAsync of 256 MiB, {name}: how long the call takes"] = bench.median(idle)
        rows[f"the same, {name}, behind a kernel of {SPIN_MS:.0f} ms on its stream"] = bench.median(behind)
    return rows


def reuse(bench):
    """When is a page-locked buffer free?"""
    stream = bench.own[0]
    rows = {}

    def overwritten(wait):
        torch.cuda.synchronize()
        bench.pinned.fill_(1)
        bench.spin(stream)
        bench.upload(bench.pinned, stream)
        event = torch.cuda.Event()
        event.record(stream)
        wait(event)
        bench.pinned.fill_(2)
        torch.cuda.synchronize()
        wrong = int((bench.device == 2).sum())
        return f"{100 * wrong / bench.bytes:7.1f} % of the bytes are the later ones"

    rows["written again when cuMemcpyHtoDAsync has returned"] = overwritten(lambda event: None)
    rows["written again when the event behind the copy is done"] = overwritten(lambda event: event.synchronize())
    return rows


def torch_to(bench):
    """What does Tensor.to wait for?"""
    rows = {}
    small = bench.bytes // 16
    for name, source in [("pageable", bench.pageable[:small]), ("page-locked", bench.pinned[:small])]:
        for non_blocking in [False, True]:
            for where, stream in [("the default stream", bench.default), ("a stream of its own", bench.own[1])]:

                def run(source=source, non_blocking=non_blocking, stream=stream):
                    bench.spin(bench.default)
                    with torch.cuda.stream(stream):
                        return bench.timed(lambda: source.to("cuda", non_blocking=non_blocking))

                what = f".to('cuda', non_blocking={non_blocking}), {name}, on {where}"
                rows[f"{what}, another thread's {SPIN_MS:.0f} ms on the default stream"] = bench.median(run)
    return rows


def torch_pinned(bench):
    """When does libtorch give a page-locked buffer out again?"""
    stream = bench.own[0]
    rows = {}

    def address_after(wait):
        torch.cuda.synchronize()
        first = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
        address = first.data_ptr()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(bench.cycles)
            there = first.to("cuda", non_blocking=True)
        del first
        if wait:
            torch.cuda.synchronize()
        second = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
        same = second.data_ptr() == address
        torch.cuda.synchronize()
        del there, second
        return "the same memory again" if same else "other memory"

    rows["dropped while its copy is on its way, then as much asked for"] = address_after(False)
    rows["the same when the copy is done"] = address_after(True)
    return rows


def torch_convert(bench):
    """Where does Tensor.to convert, and what does it upload?"""
    source = torch.rand(32, 3, 224, 224)
    rows = {"the batch: 32 x 3 x 224 x 224 float32 in ordinary memory": f"{source.nbytes / 1e6:8.2f} MB"}
    for non_blocking in [False, True]:

        def upload(non_blocking=non_blocking):
            return source.to("cuda", torch.half, non_blocking=non_blocking, memory_format=torch.channels_last)

        upload()
        took = bench.median(lambda: bench.timed(lambda: (upload(), torch.cuda.synchronize())))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            upload()
            torch.cuda.synchronize()
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            profile.export_chrome_trace(file.name)
            events = json.loads(Path(file.name).read_text())["traceEvents"]
        copies = [event["args"]["bytes"] for event in events if event.get("cat") == "gpu_memcpy"]
        kernels = sum(event.get("cat") == "kernel" for event in events)
        rows[f".to('cuda', torch.half, non_blocking={non_blocking}, channels_last)"] = (
            f"{took:8.2f} ms, {sum(copies) / 1e6:.2f} MB over the link, {kernels} kernels"
        )
    return rows


if __name__ == "__main__":
    main()
