"""Times operations alone in PyTorch: each way in a CUDA graph, on one copy of its operands after the other."""

import statistics

import torch

LAUNCHES = 12
ROTATION_BYTES = 200 << 20  # more than a GPU's L2 cache has


def copies(bytes):
    """How many copies of operands of so many bytes launches rotate over."""
    return min(max(2, ROTATION_BYTES // bytes), LAUNCHES)


def times(ways, rounds):
    """Medians of the microseconds of each way, of rounds in which all run in turn, in words; `ways` maps names to a
    function and its copies of operands."""
    graphs = {name: _graph(way, operands) for name, (way, operands) in ways.items()}
    micros = {name: [] for name in ways}
    for _ in range(rounds):
        for name, one in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            one.replay()
            start.record()
            one.replay()
            end.record()
            end.synchronize()
            micros[name].append(start.elapsed_time(end) * 1000 / LAUNCHES)
    return "; ".join(f"{name} {statistics.median(t):.1f}" for name, t in micros.items())


def _graph(way, operands):
    """A graph of launches on one copy of the operands after the other."""
    way(*operands[0])
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for i in range(LAUNCHES):
            way(*operands[i % len(operands)])
    return captured
