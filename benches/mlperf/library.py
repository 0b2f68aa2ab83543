"""The part of include/trefoil.h that the benchmark uses, through ctypes. No MLPerf here."""

import ctypes
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

ABI = (2, 0)  # TREFOIL_ABI_MAJOR, and the least minor that has what is used here
RESULT_TOP_K = 2  # TREFOIL_RESULT_TOP_K
NOT_READY = 1  # TREFOIL_STATUS_NOT_READY


class Tensor(ctypes.Structure):  # trefoil_tensor
    _fields_ = [
        ("size", c_size_t), ("dtype", c_uint32), ("height", c_uint32), ("width", c_uint32), ("channels", c_uint32),
        ("row_bytes", c_size_t), ("row_pitch", c_size_t),
    ]  # fmt: skip


class DeviceInfo(ctypes.Structure):  # trefoil_device_info
    _fields_ = [
        ("size", c_size_t), ("target", c_char * 32), ("name", c_char * 96), ("capability_major", c_uint32),
        ("capability_minor", c_uint32), ("driver_version", c_uint32), ("units", c_uint32),
        ("memory_bytes", c_uint64), ("device_bytes_used", c_uint64), ("page_locked_bytes_used", c_uint64),
    ]  # fmt: skip


class BatcherOptions(ctypes.Structure):  # trefoil_batcher_options
    _fields_ = [
        ("size", c_size_t), ("max_delay_ns", c_uint64), ("rows", c_size_t), ("in_flight", c_size_t),
        ("when_full", c_uint32), ("reserved", c_uint32), ("full_limit_ns", c_uint64),
    ]  # fmt: skip


class BatcherStats(ctypes.Structure):  # trefoil_batcher_stats
    _fields_ = [
        ("size", c_size_t), ("batches", c_uint64), ("rows", c_uint64), ("rejected", c_uint64), ("expired", c_uint64),
        ("runs", c_uint64), ("queued", c_uint64), ("queue_p50_ns", c_uint64), ("queue_p99_ns", c_uint64),
    ]  # fmt: skip


class ScoredClass(ctypes.Structure):  # trefoil_scored_class
    _fields_ = [("value", ctypes.c_float), ("index", c_uint32)]


class EngineOptions(ctypes.Structure):  # trefoil_engine_options
    _fields_ = [
        ("size", c_size_t), ("device", c_uint64), ("batch", c_size_t), ("batch_sizes", POINTER(c_size_t)),
        ("batch_size_count", c_size_t), ("slots", c_size_t), ("staging", c_size_t), ("results", c_size_t),
        ("input", c_uint32), ("result", c_uint32), ("top_k", c_size_t), ("acquire_limit_ns", c_uint64),
        ("high_priority", c_uint32), ("check", c_uint32), ("waiting", c_uint32), ("device_results", c_uint32),
        ("trace_batches", c_size_t),
    ]  # fmt: skip


TEXTS = {"trefoil_last_error", "trefoil_status_name"}  # every other function answers with a status
SIGNATURES = {
    "trefoil_last_error": [],
    "trefoil_status_name": [c_int],
    "trefoil_check_abi": [c_uint32, c_uint32],
    "trefoil_release": [c_uint64],
    "trefoil_device_open": [c_char_p, POINTER(c_uint64)],
    "trefoil_device_get_info": [c_uint64, POINTER(DeviceInfo)],
    "trefoil_model_open": [c_char_p, POINTER(c_uint64)],
    "trefoil_engine_build": [c_uint64, POINTER(EngineOptions), POINTER(c_uint64)],
    "trefoil_engine_input": [c_uint64, POINTER(Tensor)],
    "trefoil_engine_output": [c_uint64, POINTER(Tensor)],
    "trefoil_engine_capacity": [c_uint64, POINTER(c_size_t)],
    "trefoil_engine_close": [c_uint64, c_uint32, c_uint64],
    "trefoil_acquire": [c_uint64, POINTER(c_uint64)],
    "trefoil_batch_row": [c_uint64, c_size_t, POINTER(c_void_p), POINTER(c_size_t)],
    "trefoil_submit": [c_uint64, c_size_t, POINTER(c_uint64)],
    "trefoil_wait": [c_uint64, POINTER(c_uint64)],
    "trefoil_wait_for": [c_uint64, c_uint64, POINTER(c_uint64)],
    "trefoil_output_rows": [c_uint64, POINTER(c_size_t)],
    "trefoil_output_row": [c_uint64, c_size_t, POINTER(c_void_p), POINTER(c_size_t)],
    "trefoil_output_copy": [c_uint64, c_size_t, c_size_t, c_void_p, c_size_t],
    "trefoil_batcher_build": [c_uint64, POINTER(BatcherOptions), POINTER(c_uint64)],
    "trefoil_batcher_submit_rows": [c_uint64, c_void_p, c_void_p, c_size_t, c_size_t, POINTER(c_uint64)],
    "trefoil_batcher_get_stats": [c_uint64, POINTER(BatcherStats)],
    "trefoil_batcher_close": [c_uint64, c_uint32, c_uint64],
}


class Engine:
    """A model on a device that answers each row with its most probable class.

    `sizes` are all batch sizes, or the largest one alone: then the library chooses those below it.
    """

    def __init__(self, library, model, target, sizes, **options):
        self._c = _load(library)
        self.device = self._made("trefoil_device_open", str(target).encode())
        opened = self._made("trefoil_model_open", str(model).encode())
        wanted = EngineOptions(ctypes.sizeof(EngineOptions), self.device, result=RESULT_TOP_K, top_k=1, **options)
        if len(sizes) == 1:
            wanted.batch = sizes[0]
        else:
            wanted.batch_sizes, wanted.batch_size_count = (c_size_t * len(sizes))(*sizes), len(sizes)
        self._engine = self._made("trefoil_engine_build", opened, byref(wanted))
        self.input, self.output = (self._told(f"trefoil_engine_{side}", Tensor) for side in ("input", "output"))
        self.capacity = self._made("trefoil_engine_capacity", self._engine, kind=c_size_t)

    def device_info(self):
        info = DeviceInfo(ctypes.sizeof(DeviceInfo))
        self._c.trefoil_device_get_info(self.device, byref(info))
        return info

    def acquire(self):
        """A batch to fill: its handle."""
        return self._made("trefoil_acquire", self._engine)

    def rows(self, batch, count):
        """The first rows of a batch, in page-locked memory: u8, [count, row_pitch]."""
        first, pitch = c_void_p(), self.input.row_pitch
        self._c.trefoil_batch_row(batch, 0, byref(first), None)
        bytes_ = (ctypes.c_ubyte * (count * pitch)).from_address(first.value)
        return np.frombuffer(bytes_, np.uint8).reshape(count, pitch)

    def submit(self, batch, count):
        """Gives a batch up for a ticket."""
        return self._made("trefoil_submit", batch, count)

    def wait(self, ticket):
        """Gives a ticket up for the classes of its rows: uint32, [rows]."""
        output = self._made("trefoil_wait", ticket)
        rows = self._made("trefoil_output_rows", output, kind=c_size_t)
        first, pitch, scored = c_void_p(), self.output.row_pitch, np.dtype(ScoredClass)
        self._c.trefoil_output_row(output, 0, byref(first), None)
        bytes_ = (ctypes.c_ubyte * ((rows - 1) * pitch + scored.itemsize)).from_address(first.value)
        classes = np.ndarray((rows,), scored, bytes_, strides=(pitch,))["index"].copy()
        self.release(output)
        return classes

    def release(self, handle):
        self._c.trefoil_release(handle)

    def close(self, seconds=30):
        self._c.trefoil_engine_close(self._engine, 0, int(seconds * 1e9))

    def _made(self, name, *arguments, kind=c_uint64):
        made = kind()
        getattr(self._c, name)(*arguments, byref(made))
        return made.value

    def _told(self, name, kind):
        told = kind(ctypes.sizeof(kind))
        getattr(self._c, name)(self._engine, byref(told))
        return told


class Batcher:
    """Rows of an engine that come a few at a time: any thread submits, one waits."""

    def __init__(self, engine):
        self._c = engine._c
        options = BatcherOptions(ctypes.sizeof(BatcherOptions))
        self._batcher = engine._made("trefoil_batcher_build", engine._engine, byref(options))
        self._row_bytes = engine.input.row_bytes

    def submit(self, rows):
        """Copies a row from each of these addresses, uint64: their ticket."""
        ticket = c_uint64()
        at, count = rows.ctypes.data, len(rows)
        self._c.trefoil_batcher_submit_rows(self._batcher, None, at, count, self._row_bytes, byref(ticket))
        return ticket.value

    def wait(self, ticket, count):
        """Gives a ticket up for the classes of its rows: uint32, [count]."""
        output, scored = c_uint64(), np.empty(count, np.dtype(ScoredClass))
        self._c.trefoil_wait(ticket, byref(output))
        self._c.trefoil_output_copy(output, 0, count, scored.ctypes.data, scored.nbytes)
        self._c.trefoil_release(output)
        return scored["index"]

    def stats(self):
        stats = BatcherStats(ctypes.sizeof(BatcherStats))
        self._c.trefoil_batcher_get_stats(self._batcher, byref(stats))
        return stats

    def close(self, seconds=30):
        self._c.trefoil_batcher_close(self._batcher, 0, int(seconds * 1e9))
        self._c.trefoil_release(self._batcher)


def _load(path, kind=ctypes.CDLL):
    library = kind(str(path))
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_char_p if name in TEXTS else c_int
        if name not in TEXTS:
            function.errcheck = lambda status, *_: _must(library, status)
    library.trefoil_check_abi(*ABI)
    return library


def _must(library, status):
    if status not in (0, NOT_READY):
        name, message = library.trefoil_status_name(status), library.trefoil_last_error()
        raise RuntimeError(f"{name.decode()}: {message.decode()}")
    return status
