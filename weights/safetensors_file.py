"""Writing and reading safetensors files, by hand and reproducibly.

Layout: the header's length (u64, little-endian), the header (JSON, padded with
spaces to a multiple of 8 bytes), then the tensors' bytes, little-endian and
row-major, back to back in the order of their names.
"""

import hashlib
import json
import struct

import numpy as np

DTYPES = {np.dtype("<f2"): "F16", np.dtype("<f4"): "F32"}


def write(path, tensors):
    """Writes `tensors` (name -> numpy array, fp16 or fp32); returns the file's sha256.

    The same tensors always give the same bytes.
    """
    header = {"__metadata__": {"format": "pt"}}
    chunks, offset = [], 0
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        assert offset % array.itemsize == 0, f"{name} would be misaligned"
        data = array.tobytes()
        header[name] = {
            "dtype": DTYPES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    blob = struct.pack("<Q", len(text)) + text + b"".join(chunks)
    path.write_bytes(blob)
    return hashlib.sha256(blob).hexdigest()


def read(path):
    """Reads the tensors of a file that `write` made, as name -> numpy array."""
    blob = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", blob)
    header = json.loads(blob[8 : 8 + header_bytes])
    data = blob[8 + header_bytes :]
    dtypes = {text: dtype for dtype, text in DTYPES.items()}
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        array = np.frombuffer(data[begin:end], dtypes[info["dtype"]])
        tensors[name] = array.reshape(info["shape"])
    return tensors


def write_config(path, config):
    """Writes config.json: two-space indent, lists of numbers on one line."""
    text = json.dumps(config, indent=2, ensure_ascii=False)
    path.write_text(_one_line_number_lists(text) + "\n", encoding="utf-8")


def _one_line_number_lists(text):
    lines, out = text.split("\n"), []
    while lines:
        line = lines.pop(0)
        if line.endswith("[") and lines[0].strip().rstrip(",").replace(".", "").isdigit():
            items = []
            while not lines[0].strip().startswith("]"):
                items.append(lines.pop(0).strip())
            line += " ".join(items) + lines.pop(0).strip()
        out.append(line)
    return "\n".join(out)
