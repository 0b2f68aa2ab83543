#!/usr/bin/env python3
"""Writes onnx/quantised-*.onnx: small random networks as onnxruntime's quantizer writes them, and as JSON what onnxruntime
answers, its optimisations off.

    python3 tests/data/make_quantised.py

Needs onnx 1.23 and onnxruntime 1.32 with numpy.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

HERE = Path(__file__).parent / "onnx"
SIDE = 12
ROWS = 16


class Growing:
    """A network that grows by a node at a time, with random weights."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.tensors = [], []

    def tensor(self, name, values):
        self.tensors.append(numpy_helper.from_array(np.asarray(values, dtype=np.float32), name))
        return name

    def node(self, op, inputs, name, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def conv(self, name, x, channels, side=1, stride=1, group=1):
        terms = channels[0] // group * side * side
        weight = self.random.standard_normal((channels[1], channels[0] // group, side, side)) * np.sqrt(2 / terms)
        bias = self.random.standard_normal(channels[1]) * 0.2
        inputs = [x, self.tensor(f"{name}.weight", weight), self.tensor(f"{name}.bias", bias)]
        return self.node("Conv", inputs, name, strides=[stride] * 2, pads=[side // 2] * 4, group=group)

    def save(self, path, x):
        weight = self.tensor("fc.weight", self.random.standard_normal((10, 16)) * 0.5)
        bias = self.tensor("fc.bias", self.random.standard_normal(10) * 0.1)
        mean = self.node("GlobalAveragePool", [x], "mean")
        flat = self.node("Flatten", [mean], "flat")
        self.node("Gemm", [flat, weight, bias], "scores", transB=1)
        port = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *dims])
        ports = [port("image", [3, SIDE, SIDE])], [port("scores", [10])]
        graph = helper.make_graph(self.nodes, "g", *ports, self.tensors)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def mobile(path):
    """Depthwise layers, a sum, and values that are below zero between layers."""
    g = Growing(1)
    g.tensor("low", 0.0), g.tensor("high", 6.0)
    x = g.node("Relu", [g.conv("stem", "image", [3, 16], 3, 2)], "relu")
    y = g.node("Clip", [g.conv("expand", x, [16, 32]), "low", "high"], "six")
    y = g.node("Clip", [g.conv("depthwise", y, [32, 32], 3, group=32), "low", "high"], "six2")
    sum = g.node("Add", [g.conv("project", y, [32, 16]), x], "sum")
    g.save(path, g.node("Relu", [g.conv("last", sum, [16, 16])], "relu2"))


def operators(path):
    """The operators that have a form of their own for bytes."""
    g = Growing(2)
    x = g.node("LeakyRelu", [g.conv("stem", "image", [3, 8], 3)], "leaky", alpha=0.1)
    pools = [g.node(op, [x], op, kernel_shape=[2, 2], strides=[2, 2]) for op in ["MaxPool", "AveragePool"]]
    both = g.node("Concat", pools, "both", axis=1)
    gate = g.node("Sigmoid", [g.conv("gate", both, [16, 16])], "sigmoid")
    gated = g.node("Mul", [both, gate], "gated")
    share = g.node("Softmax", [g.conv("share", gated, [16, 16])], "softmax", axis=1)
    g.save(path, g.node("Add", [gated, share], "sum"))


def images(first):
    """Numbers of a formula, from -1 to 1."""
    elems = 3 * SIDE * SIDE
    at = np.arange(first * elems, (first + ROWS) * elems, dtype=np.uint64)
    numbers = (at * np.uint64(2_654_435_761) % np.uint64(1009)).astype(np.float64) / 504.5 - 1.0
    return numbers.astype(np.float32).reshape(ROWS, 3, SIDE, SIDE)


class Images(CalibrationDataReader):
    def __init__(self):
        self.left = iter([{"image": image[None]} for image in images(ROWS)])

    def get_next(self):
        return next(self.left, None)


def quantise(write, name, form, dtype):
    floats, path = HERE / "floats.onnx", HERE / f"quantised-{name}.onnx"
    write(floats)
    quantize_static(floats, path, Images(), quant_format=form, per_channel=True, activation_type=dtype,
                    weight_type=QuantType.QInt8, extra_options={"WeightSymmetric": True})
    floats.unlink()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    scores = session.run(None, {"image": images(0)})[0]
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    scale = float(tensors["scores_scale"])
    steps = np.rint(scores.astype(np.float64) / scale).astype(int)
    path.with_suffix(".json").write_text(json.dumps({"scale": scale, "steps": steps.tolist()}) + "\n")
    print(path.name, path.stat().st_size, sorted({node.op_type for node in onnx.load(path).graph.node}), scale, steps[:2])


def main():
    for tag, dtype in [("u8", QuantType.QUInt8), ("s8", QuantType.QInt8)]:
        quantise(mobile, f"pairs-{tag}", QuantFormat.QDQ, dtype)
        quantise(operators, f"operators-{tag}", QuantFormat.QOperator, dtype)


main()
