#!/usr/bin/env python3
"""Writes onnx/e4m3.onnx: two products of codes of e4m3 with a GELU between and a shortcut around, random numbers, and as JSON
what ONNX's reference answers.

    python3 tests/data/make_e4m3.py

Needs onnx 1.20 with numpy and ml_dtypes.
"""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save
from onnx.reference import ReferenceEvaluator

HERE = Path(__file__).parent / "onnx"
TOKENS, WIDTH, INNER = 6, 64, 128


def main():
    random = np.random.default_rng(7)
    nodes, tensors = [], []

    def tensor(name, values):
        tensors.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(op, inputs, name, **attributes):
        nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def rounded(name, x, scale):
        """Codes of x and back, with one scale and a zero point, as exporters write it."""
        scale = tensor(f"{name}.scale", np.float32(scale))
        zero = tensor(f"{name}.zero", np.asarray(0, ml_dtypes.float8_e4m3fn))
        codes = node("QuantizeLinear", [x, scale, zero], f"{name}.q")
        return node("DequantizeLinear", [codes, scale, zero], f"{name}.dq")

    def matrix(name, k, n, axis):
        """The matrix [k, n] in codes with a scale for each column; stored transposed if axis is 0."""
        w = random.standard_normal((k, n) if axis == 1 else (n, k)).astype(np.float32) / np.sqrt(k)
        scale = (np.abs(w).max(1 - axis, keepdims=True) / 448).astype(np.float32)
        codes = tensor(f"{name}.codes", (w / scale).astype(ml_dtypes.float8_e4m3fn))
        w = node("DequantizeLinear", [codes, tensor(f"{name}.scale", scale.reshape(-1))], f"{name}.dq", axis=axis)
        return w if axis == 1 else node("Transpose", [w], f"{name}.turned", perm=[1, 0])

    y = node("MatMul", [rounded("x8", "x", 4 / 448), matrix("w1", WIDTH, INNER, 1)], "fc1")
    y = node("Add", [y, tensor("b1", random.standard_normal(INNER).astype(np.float32))], "fc1.bias")
    erf = node("Erf", [node("Div", [y, tensor("root", np.float32(2**0.5))], "gelu.div")], "gelu.erf")
    erf = node("Add", [erf, tensor("one", np.float32(1))], "gelu.add")
    y = node("Mul", [node("Mul", [y, erf], "gelu.mul"), tensor("half", np.float32(0.5))], "gelu")
    y = node("MatMul", [rounded("y8", y, 5 / 448), matrix("w2", INNER, WIDTH, 0)], "fc2")
    y = node("Add", [y, tensor("b2", random.standard_normal(WIDTH).astype(np.float32))], "fc2.bias")
    node("Add", ["x", y], "y")
    port = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", TOKENS, WIDTH])
    graph = helper.make_graph(nodes, "e4m3", [port("x")], [port("y")], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    checker.check_model(model)
    save(model, HERE / "e4m3.onnx")
    x = random.standard_normal((2, TOKENS, WIDTH)).astype(np.float32)
    y = ReferenceEvaluator(model).run(None, {"x": x})[0]
    answer = {"x": x.reshape(2, -1).tolist(), "y": [[round(float(v), 6) for v in row] for row in y.reshape(2, -1)]}
    (HERE / "e4m3.json").write_text(json.dumps(answer) + "\n")
    print((HERE / "e4m3.onnx").stat().st_size, y.std())


main()
