"""Writes the node tests of the installed package `onnx` for tests/onnx_nodes.rs.

    pip install onnx==1.23.2
    python tests/onnx/nodes.py FOLDER

A test is a folder with a model, `model.onnx`, and its values as tensors, `input_0.pb` and on, `output_0.pb` and on. What is
no tensor has no file.
"""

import pathlib
import sys

import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_node_model_tests


def write(folder, kind, values, ports):
    for index, (value, port) in enumerate(zip(values, ports)):
        if not isinstance(value, onnx.TensorProto):
            if not port.type.HasField("tensor_type"):
                continue
            value = numpy_helper.from_array(value, port.name)
        (folder / f"{kind}_{index}.pb").write_bytes(value.SerializeToString())


def main():
    root = pathlib.Path(sys.argv[1])
    cases = load_node_model_tests()
    for case in cases:
        folder = root / case.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(case.model.SerializeToString())
        [(inputs, outputs)] = case.data_sets
        write(folder, "input", inputs, case.model.graph.input)
        write(folder, "output", outputs, case.model.graph.output)
    print(len(cases), "tests with onnx", onnx.__version__)


main()
