"""Uses trefoil in a torch program: the input is pixels that torch has on the GPU, the result a torch tensor of probabilities.

    torch_interop.py LIBRARY MODEL [BATCH [BATCHES]]

LIBRARY is libtrefoil.so as scripts/install_c.sh makes it, called through ctypes; MODEL is one that reads bytes. torch and
trefoil share the device's primary context. One torch stream makes the pixels of each batch, another adds up what the
model says of them; trefoil is between them, ordered by events. After the set-up nothing crosses the link and Python waits
for nothing but a free batch. In the end the results are compared with those of the same pixels from page-locked memory.
"""
import ctypes
import sys
import time

import torch

U64, SIZE, U32, POINTER = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_void_p


def struct(name, *fields):
    """A struct that begins with its size."""
    made = type(name, (ctypes.Structure,), {"_fields_": [("size", SIZE), *fields]})
    return lambda **values: made(size=ctypes.sizeof(made), **values)


Rows = struct("Rows", ("address", POINTER), ("row_pitch", SIZE), ("stream", POINTER))
There = struct("There", ("address", POINTER), ("rows", SIZE), ("row_bytes", SIZE), ("row_pitch", SIZE), ("event", POINTER))
Tensor = struct("Tensor", ("dtype", U32), ("height", U32), ("width", U32), ("channels", U32), ("row_bytes", SIZE), ("row_pitch", SIZE))
Options = struct(
    "Options", ("device", U64), ("batch", SIZE), ("batch_sizes", POINTER), ("batch_size_count", SIZE), ("slots", SIZE),
    ("staging", SIZE), ("results", SIZE), ("input", U32), ("result", U32), ("top_k", SIZE), ("acquire_limit_ns", U64),
    ("high_priority", U32), ("check", U32), ("waiting", U32), ("device_results", U32), ("trace_batches", SIZE))


class Library:
    """The functions of trefoil.h without their prefix: a status other than OK is an exception, and a last argument that is
    the name of a type is what the call writes."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.trefoil_last_error.restype = ctypes.c_char_p

    def __getattr__(self, name):
        function = getattr(self.library, "trefoil_" + name)

        def call(*arguments, out=None):
            made = out and out()
            sent = [U64(a) if isinstance(a, int) else ctypes.byref(a) if isinstance(a, ctypes.Structure) else a
                    for a in arguments]
            if function(*sent, *([ctypes.byref(made)] if out else [])) != 0:
                raise RuntimeError(f"{name}: {self.library.trefoil_last_error().decode()}")
            return getattr(made, "value", made)

        return call


class Floats:
    """Rows of floats in device memory, as torch takes them: no copy."""

    def __init__(self, there):
        self.__cuda_array_interface__ = {
            "version": 3, "typestr": "<f4", "data": (there.address, False),
            "shape": (there.rows, there.row_bytes // 4), "strides": (there.row_pitch, 4)}


def main(path, model_path, batch=32, batches=64):
    trefoil = Library(path)
    model = trefoil.model_open(model_path.encode(), out=U64)
    device = trefoil.device_open(b"cuda:0", out=U64)
    engine = trefoil.engine_build(model, Options(device=device, batch=batch, device_results=1), out=U64)
    rows, result = Tensor(), Tensor()
    trefoil.engine_input(engine, rows)
    trefoil.engine_output(engine, result)

    maker, reader = torch.cuda.Stream(), torch.cuda.Stream()
    shape = (batch, rows.height, rows.width, rows.channels)
    start = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
    kept = torch.zeros(batches, batch, result.row_bytes // 4, device="cuda")
    total = torch.zeros(result.row_bytes // 4, device="cuda")

    def pixels(index):
        """A kernel of torch's makes the pixels of a batch."""
        return start * (2 * index + 1) + index

    def submit(index):
        lent = trefoil.acquire(engine, out=U64)
        with torch.cuda.stream(maker):
            made = pixels(index)  # freed in the order of this stream, on which trefoil copies it
            trefoil.batch_read_from(lent, Rows(address=made.data_ptr(), row_pitch=0, stream=maker.cuda_stream))
            output = trefoil.submit_to_device(lent, batch, out=U64)
        there = There()
        trefoil.device_output_get_info(output, there)
        stream = POINTER(reader.cuda_stream)
        trefoil.device_output_wait_on(output, stream)
        with torch.cuda.stream(reader):
            probabilities = torch.as_tensor(Floats(there), device="cuda")
            kept[index].copy_(probabilities)
            total.add_(probabilities.sum(0))
        trefoil.device_output_read_on(output, stream)
        trefoil.release(output)  # used again when the reader is through

    submit(0)
    total.zero_()
    torch.cuda.synchronize()
    began = time.perf_counter()
    torch.cuda.nvtx.range_push("steady")
    for index in range(batches):
        submit(index)
    reader.synchronize()
    torch.cuda.nvtx.range_pop()
    took = time.perf_counter() - began

    differing = 0
    for index in range(batches):
        lent = trefoil.acquire(engine, out=U64)
        host = pixels(index).cpu().contiguous()
        for row in range(batch):
            to = POINTER()
            row_bytes = trefoil.batch_row(lent, row, ctypes.byref(to), out=SIZE)
            ctypes.memmove(to, host[row].data_ptr(), row_bytes)
        output = trefoil.wait(trefoil.submit(lent, batch, out=U64), out=U64)
        for row in range(batch):
            at = POINTER()
            trefoil.output_row(output, row, ctypes.byref(at), out=SIZE)
            expected = torch.frombuffer((ctypes.c_float * (result.row_bytes // 4)).from_address(at.value), dtype=torch.float32)
            differing += not torch.equal(expected, kept[index, row].cpu())
        trefoil.release(output)
    assert torch.allclose(total, kept.sum((0, 1)), rtol=1e-3), "what was added up on the way is not what was kept"
    print(f"{batches} batches of {batch} rows: {batches * batch / took:.0f} rows/s from tensor to tensor")
    print(f"{differing} of {batches * batch} results differ from those of page-locked memory")
    return differing != 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
