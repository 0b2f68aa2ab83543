"""torch's sides of one network at one number of rows, in a process of their own: compiled beside others, timed alone."""

import contextlib
import fcntl
import time
import traceback

import torch

import peers
from fp8 import in_fp8
from models import exact_fp32

COMPARED = 8  # rows

EAGER, INDUCTOR, AUTOTUNED = "eager", "inductor", "autotuned"
FP8 = "fp8"  # linear layers in e4m3, compiled; it changes the module, so it comes last


class Turn:
    """A lock among processes: while one of them holds it, no other runs anything on the GPU that is timed."""

    def __init__(self, path):
        self._file, self._depth = open(path, "w"), 0

    def __enter__(self):
        if self._depth == 0:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._depth += 1

    def __exit__(self, *_exception):
        self._depth -= 1
        if self._depth == 0:
            torch.cuda.synchronize() if torch.cuda.is_initialized() else None
            fcntl.flock(self._file, fcntl.LOCK_UN)


def serve(pipe, network, rows, asked):
    """Makes the network, writes its files if asked to, and its sides; then answers `(side, seconds)` with milliseconds."""
    try:
        with torch.no_grad():
            _serve(pipe, network, rows, asked)
    except Exception:
        pipe.send(("failed", traceback.format_exc(limit=-4)))


def _serve(pipe, network, rows, asked):
    torch.set_num_threads(2)
    torch.manual_seed(0)
    made = network.make(rows)
    x, ports = made.rows(rows)
    if asked.writes:
        pipe.send(("files", (made.write(asked.folder), made.sizes, made.port)))
    turn = Turn(asked.lock)
    with turn:
        some = {port: array[:COMPARED] for port, array in ports.items()}
        pipe.send(("reference", (some, _reference(made, x, asked.device))))
    sides = {}
    for name in asked.sides:
        began = time.monotonic()
        try:
            sides[name] = _side(name, made, x, turn, asked)
            output = _found(made, torch.from_numpy(sides[name].output()))
            pipe.send(("side", (name, time.monotonic() - began, output)))
        except Exception:
            pipe.send(("lost", (name, traceback.format_exc(limit=-4))))
    pipe.send(("ready", None))
    while (told := pipe.recv()) is not None:
        name, seconds = told
        pipe.send(("ms", sides[name].median_ms(seconds, samples=5)))


def _reference(made, x, device):
    """In f32."""
    exact_fp32()
    is_traced = isinstance(made.module, torch.fx.GraphModule)  # it has its number of rows in it
    result = made.module.to(device)(x.to(device) if is_traced else x[:COMPARED].to(device))
    if device != "cpu":
        torch.cuda.empty_cache()
    return _found(made, result.cpu())


def _found(made, result):
    """What is compared: an array, a row each."""
    result = result[:COMPARED]
    result = made.find(result) if made.find else result
    return result.flatten(1).numpy()


def _side(name, made, x, turn, asked):
    """The forward of a side, captured in a CUDA graph."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = True, False
    x = x.to(asked.device)
    x = x.to(asked.dtype) if x.is_floating_point() else x
    module = made.module.to(asked.device, asked.dtype)
    module = module.to(memory_format=peers.CHANNELS_LAST)
    if made.is_planar:
        x = x.to(memory_format=peers.CHANNELS_LAST)
    if name == FP8:
        module = in_fp8(module, x[:COMPARED])
    forward = module if name == EAGER else _compiled(module, x, turn, name == AUTOTUNED)
    with turn:
        return _Calls(forward, x) if asked.device == "cpu" else peers.Graph(forward, x)


def _compiled(module, x, turn, is_autotuned):
    """torch.compile with frozen weights, or not frozen where that fails; what it times, it times in its turn."""
    import torch._inductor as inductor
    import torch._inductor.config as config
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    options = inductor.list_mode_options("max-autotune-no-cudagraphs") if is_autotuned else None
    times = AlgorithmSelectorCache.autotune

    def autotune(*given, **named):
        with turn:
            return times(*given, **named)

    def backend(graph, inputs):
        with _replaced(AlgorithmSelectorCache, "autotune", autotune):
            compiled = compile_fx(graph, inputs, config_patches=options)

        def run(*given):
            with turn:  # the first run times kernels
                return compiled(*given)

        return run

    for config.freezing in (True, False):
        torch._dynamo.reset()
        forward = torch.compile(module, backend=backend, dynamic=False)
        try:
            forward(x)
            break
        except torch._dynamo.exc.BackendCompilerFailed:
            if not config.freezing:
                raise
    return forward


@contextlib.contextmanager
def _replaced(owner, name, value):
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


class _Calls:
    """A forward on the CPU."""

    def __init__(self, forward, x):
        self.forward, self.x = forward, x

    def output(self):
        return self.forward(self.x).float().numpy()

    @torch.no_grad()
    def median_ms(self, seconds, samples):
        times, end = [], time.monotonic() + seconds
        while len(times) < samples or time.monotonic() < end:
            began = time.monotonic()
            self.forward(self.x)
            times.append(1e3 * (time.monotonic() - began))
        return sorted(times)[len(times) // 2]
