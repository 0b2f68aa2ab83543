#!/usr/bin/env python3
"""Writes onnx/: small ONNX files, and as JSON what Python's onnx finds in each.

    python3 tests/data/make_onnx.py

Needs onnx 1.23 with numpy. With the path of an ONNX file as an argument it prints what it finds in that one. With --lstm,
the path of an ONNX file that is to be written, and numbers of steps, of hidden units and of features, it writes an LSTM.

The JSON has every field that `trefoil::onnx` keeps. The elements of a tensor are in hexadecimal, as `raw_data` would have
them; of more than 64 bytes their CRC-32 is told.
"""

import json
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

HERE = Path(__file__).parent / "onnx"
TYPES = {number: name for name, number in TensorProto.DataType.items()}


def domain(name):
    return "" if name == "ai.onnx" else name


def elements(tensor, folder):
    if tensor.data_type == TensorProto.STRING:
        return "text"
    if tensor.data_location == TensorProto.EXTERNAL:
        onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)
    if 0 in tensor.dims:
        raw = b""
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data
    else:
        raw = numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
    return raw.hex() if len(raw) <= 64 else f"crc32 {zlib.crc32(raw)}"


def tensor(t, folder):
    return {"name": t.name, "dtype": TYPES[t.data_type], "dims": list(t.dims), "elements": elements(t, folder)}


def text(data):
    return data.decode("latin-1")


def attribute(a, folder):
    kind = AttributeProto.AttributeType.Name(a.type)
    if a.ref_attr_name:
        return {"name": a.name, "type": "reference", "value": a.ref_attr_name}
    value = {
        "FLOAT": lambda: a.f,
        "INT": lambda: a.i,
        "STRING": lambda: text(a.s),
        "TENSOR": lambda: tensor(a.t, folder),
        "GRAPH": lambda: graph(a.g, folder),
        "FLOATS": lambda: list(a.floats),
        "INTS": lambda: list(a.ints),
        "STRINGS": lambda: [text(s) for s in a.strings],
        "TENSORS": lambda: [tensor(t, folder) for t in a.tensors],
        "GRAPHS": lambda: [graph(g, folder) for g in a.graphs],
        "TYPE_PROTO": lambda: None,
        "TYPE_PROTOS": lambda: None,
    }[kind]()
    return {"name": a.name, "type": kind, "value": value}


def node(n, folder):
    return {
        "name": n.name,
        "op_type": n.op_type,
        "domain": domain(n.domain),
        "overload": n.overload,
        "inputs": list(n.input),
        "outputs": list(n.output),
        "attributes": [attribute(a, folder) for a in n.attribute],
    }


def dim(d):
    if d.WhichOneof("value") == "dim_param" and d.dim_param:
        return d.dim_param
    return d.dim_value if d.WhichOneof("value") == "dim_value" and d.dim_value >= 0 else None


def value_info(v):
    kind = v.type.WhichOneof("value")
    if kind is None:
        return {"name": v.name, "kind": "unknown"}
    if kind != "tensor_type":
        return {"name": v.name, "kind": kind.removesuffix("_type").replace("_", " ")}
    t = v.type.tensor_type
    dims = [dim(d) for d in t.shape.dim] if t.HasField("shape") else None
    return {"name": v.name, "kind": "tensor", "dtype": TYPES[t.elem_type] if t.elem_type else None, "dims": dims}


def graph(g, folder):
    return {
        "name": g.name,
        "nodes": [node(n, folder) for n in g.node],
        "initializers": [tensor(t, folder) for t in g.initializer],
        "inputs": [value_info(v) for v in g.input],
        "outputs": [value_info(v) for v in g.output],
        "values": [value_info(v) for v in g.value_info],
    }


def opsets(entries):
    return [[domain(o.domain), o.version] for o in entries]


def function(f, folder):
    return {
        "name": f.name,
        "domain": domain(f.domain),
        "overload": f.overload,
        "inputs": list(f.input),
        "outputs": list(f.output),
        "attributes": list(f.attribute),
        "defaults": [attribute(a, folder) for a in f.attribute_proto],
        "nodes": [node(n, folder) for n in f.node],
        "opsets": opsets(f.opset_import),
        "values": [value_info(v) for v in f.value_info],
    }


def model(path):
    m = onnx.load(path, load_external_data=False)
    folder = str(Path(path).parent)
    return {
        "ir_version": m.ir_version,
        "producer_name": m.producer_name,
        "producer_version": m.producer_version,
        "domain": m.domain,
        "model_version": m.model_version,
        "opsets": opsets(m.opset_import),
        "metadata": [[e.key, e.value] for e in m.metadata_props],
        "graph": graph(m.graph, folder),
        "functions": [function(f, folder) for f in m.functions],
    }


def floats(name, dims, values):
    return helper.make_tensor(name, TensorProto.FLOAT, dims, values)


def main_graph():
    """Every kind of attribute, value and name."""
    weight = numpy_helper.from_array(np.arange(0.5, 6.5, dtype=np.float32).reshape(2, 3), "weight")
    branches = []
    for name, add in [("then", 1.0), ("else", -1.0)]:
        constant = helper.make_node("Constant", [], ["c"], value=floats("", [], [add]))
        inner = helper.make_node("Add", ["clipped", "c"], [name])
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2])
        branches.append(helper.make_graph([constant, inner], name, [], [out]))
    every = helper.make_node(
        "Every", ["clipped"], ["every"], name="every", domain="trefoil.test", f=-0.25, i=-3, s="Größe", floats=[1.5, -2.0, 0.0],
        ints=[0, -1, 2**62, -(2**63)], strings=["a", "", "ß"], tensors=[floats("a", [1], [7.0]), floats("b", [0], [])],
        graphs=branches, doc_string="not kept")
    every.attribute.append(helper.make_attribute("bytes", b"\xff\x00\x80"))
    every.attribute.append(helper.make_attribute("type", helper.make_tensor_type_proto(TensorProto.INT64, [2])))
    every.attribute.append(AttributeProto(name="none", type=AttributeProto.INTS))
    nodes = [
        helper.make_node("Gemm", ["x", "weight", "bias"], ["gemm"], name="first", transB=1, alpha=0.5),
        helper.make_node("Clip", ["gemm", "", "six"], ["clipped"], domain="ai.onnx"),
        helper.make_node("Scaled", ["clipped"], ["scaled"], domain="trefoil.test", overload="two", by=2.0),
        helper.make_node("If", ["condition"], ["y"], then_branch=branches[0], else_branch=branches[1]),
        every,
    ]
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, ["N", 3]), info("condition", TensorProto.BOOL, [])]
    outputs = [info("y", TensorProto.FLOAT, [-1, 2]), info("every", TensorProto.UNDEFINED, None)]
    values = [
        info("gemm", TensorProto.FLOAT16, [None, "?", "N + 1", "", 7]),
        helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
        helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [2]))),
        helper.make_value_info("m", helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, []))),
        helper.make_sparse_tensor_value_info("p", TensorProto.FLOAT, [3]),
        onnx.ValueInfoProto(name="nothing"),
    ]
    bias = helper.make_tensor("bias", TensorProto.FLOAT, [2], [1.0, -1.0])
    six = helper.make_tensor("six", TensorProto.FLOAT, [], [6.0])
    return helper.make_graph(nodes, "main", inputs, outputs, [weight, bias, six], "not kept", values)


def scaled(overload):
    by = helper.make_node("Constant", [], ["by"])
    by.attribute.append(AttributeProto(name="value_float", type=AttributeProto.FLOAT, ref_attr_name="by"))
    mul = helper.make_node("Mul", ["x", "by"], ["y"])
    f = helper.make_function(
        "trefoil.test", "Scaled", ["x"], ["y"], [by, mul], [helper.make_opsetid("ai.onnx", 20)], ["by"],
        [helper.make_attribute("to", [1, 2])], overload=overload)
    f.value_info.append(helper.make_tensor_value_info("by", TensorProto.FLOAT, []))
    return f


def write_graph(path):
    versions = [helper.make_opsetid("ai.onnx", 21), helper.make_opsetid("trefoil.test", 1)]
    m = helper.make_model(
        main_graph(), producer_name="make_onnx.py", producer_version="1", domain="org.example", model_version=-7,
        opset_imports=versions, functions=[scaled(""), scaled("two")], ir_version=10)
    m.metadata_props.add(key="author", value="someone")
    m.metadata_props.add(key="", value="ü")
    onnx.save(m, path)


def write_tensors(path):
    """Every element type, once in its own field and once in raw_data; three elements and a padded last byte."""
    tensors = []
    for number, name in TYPES.items():
        if name in ("UNDEFINED", "STRING"):
            continue
        bits = 6 if name.startswith("FLOAT6") else None
        values = [1.0, 0.0, 2.0] if name.startswith(("FLOAT", "DOUBLE", "BFLOAT", "COMPLEX")) else [1, 0, 1]
        if name in ("INT8", "INT16", "INT32", "INT64"):
            values = [-1, 0, 2**(int(name[3:]) - 1) - 1]
        if name in ("UINT8", "UINT16", "UINT32", "UINT64"):
            values = [1, 0, 2**int(name[4:]) - 1]
        typed = helper.make_tensor(name.lower(), number, [3], values)
        assert not typed.HasField("raw_data"), name
        raw = numpy_helper.from_array(numpy_helper.to_array(typed), name.lower() + "_raw")
        assert raw.data_type == number and raw.HasField("raw_data"), name
        tensors += [typed, raw]
    tensors.append(helper.make_tensor("string", TensorProto.STRING, [2], ["a", ""]))
    tensors.append(helper.make_tensor("empty", TensorProto.INT64, [0, 2**40, 2**40], []))
    long = np.arange(-50, 50, dtype=np.int64) ** 5
    tensors.append(helper.make_tensor("long", TensorProto.INT64, [100], long))
    save(helper.make_graph([], "tensors", [], [], tensors), path)


def write_external(path):
    data = path.with_suffix(".data")
    content = np.arange(24, dtype=np.float16).tobytes()
    data.write_bytes(content)
    tensors = []
    for name, dims, entries in [("all", [4, 6], {}), ("part", [2], {"offset": "6", "length": "4"}), ("end", [0], {"offset": "48"})]:
        t = TensorProto(name=name, data_type=TensorProto.FLOAT16, dims=dims, data_location=TensorProto.EXTERNAL)
        for key, value in {"location": data.name, **entries, "checksum": "not looked at"}.items():
            t.external_data.add(key=key, value=value)
        tensors.append(t)
    save(helper.make_graph([], "external", [], [], tensors), path)


def write_images(path):
    """A network of images in pieces that exporters write: padding, batch norms, bounds and a linear layer by themselves."""
    random = np.random.default_rng(1)
    tensors = []

    def weight(name, *dims, low=-1.0):
        values = random.uniform(low, 1.0, dims) / max(1, np.prod(dims[1:])) ** 0.5
        tensors.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def norm(name, x, channels):
        parts = [weight(f"{name}.{part}", channels, low=0.5 if part == "var" else -1.0) for part in ["gamma", "beta", "mean", "var"]]
        return helper.make_node("BatchNormalization", [x, *parts], [name], name=name)

    def scalar(name, value):
        tensors.append(numpy_helper.from_array(np.array(value, dtype=np.float32), name))
        return name

    tensors.append(numpy_helper.from_array(np.array([0, 0, 0, 0, 0, 0, 1, 1], dtype=np.int64), "pads"))
    nodes = [
        helper.make_node("Pad", ["image", "pads"], ["padded"], name="pad"),
        helper.make_node("Conv", ["padded", weight("stem.weight", 12, 3, 3, 3)], ["stem"], name="stem", strides=[2, 2]),
        norm("norm1", "stem", 12),
        helper.make_node("Clip", ["norm1", scalar("zero", 0), scalar("six", 6)], ["relu6"], name="relu6"),
        helper.make_node("Conv", ["relu6", weight("depthwise.weight", 12, 1, 3, 3), weight("depthwise.bias", 12)], ["depthwise"],
                         name="depthwise", group=12, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["depthwise"], ["relu"], name="relu"),
        helper.make_node("Conv", ["relu", weight("pointwise.weight", 12, 12, 1, 1)], ["pointwise"], name="pointwise"),
        norm("norm2", "pointwise", 12),
        helper.make_node("Add", ["relu6", "norm2"], ["sum"], name="sum"),
        helper.make_node("MaxPool", ["sum"], ["pool"], name="pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["pool", "pool"], ["both"], name="both", axis=1),
        helper.make_node("GlobalAveragePool", ["both"], ["mean"], name="mean"),
        helper.make_node("Flatten", ["mean"], ["flat"], name="flat"),
        helper.make_node("Gemm", ["flat", weight("fc.weight", 10, 24), weight("fc.bias", 10)], ["logits"], name="fc", transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], name="softmax"),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("image", TensorProto.FLOAT, ["batch", 3, 20, 16])]
    outputs = [info("probabilities", TensorProto.FLOAT, ["batch", 10])]
    save(helper.make_graph(nodes, "images", inputs, outputs, tensors), path)


def write_values(path):
    """Numbers and a shift for each of them: their sums, which numbers are large, and the shift doubled."""
    nodes = [
        helper.make_node("Cast", ["shift"], ["shift.float"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["numbers", "shift.float"], ["sums"], name="sums"),
        helper.make_node("Greater", ["numbers", "limit"], ["large"], name="large"),
        helper.make_node("Add", ["shift", "shift"], ["doubled"], name="doubled"),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("numbers", TensorProto.FLOAT, ["batch", "n"]), info("shift", TensorProto.INT64, ["batch", 1])]
    outputs = [
        info("sums", TensorProto.FLOAT, ["batch", "n"]),
        info("large", TensorProto.BOOL, ["batch", "n"]),
        info("doubled", TensorProto.INT64, ["batch", 1]),
    ]
    limit = numpy_helper.from_array(np.array(0.5, dtype=np.float32), "limit")
    save(helper.make_graph(nodes, "values", inputs, outputs, [limit]), path)


def write_records(path):
    """An image and two numbers: the means of the image's colours through a product, the numbers joined to them, in halves, and
    the places of the two largest."""
    tensors = [
        constant("filter", (np.arange(12) / 8 - 0.5).reshape(3, 4)), constant("byte", np.array(255)),
        constant("k", [2], np.int64),
    ]
    nodes = [
        helper.make_node("Cast", ["image"], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["levels", "byte"], ["scaled"], name="scaled"),
        helper.make_node("ReduceMean", ["scaled", "rows.columns"], ["means"], name="means", keepdims=0),
        helper.make_node("MatMul", ["means", "filter"], ["product"], name="product"),
        helper.make_node("Concat", ["product", "numbers"], ["joined"], name="joined", axis=1),
        helper.make_node("TopK", ["joined", "k"], ["largest", "places"], name="largest", axis=1),
        helper.make_node("Cast", ["places"], ["best"], to=TensorProto.UINT32),
        helper.make_node("Cast", ["joined"], ["features"], to=TensorProto.FLOAT16),
    ]
    tensors.append(constant("rows.columns", [1, 2], np.int64))
    info = helper.make_tensor_value_info
    inputs = [info("image", TensorProto.UINT8, ["batch", 5, 7, 3]), info("numbers", TensorProto.FLOAT, ["batch", 2])]
    outputs = [info("features", TensorProto.FLOAT16, ["batch", 6]), info("best", TensorProto.UINT32, ["batch", 2])]
    save(helper.make_graph(nodes, "records", inputs, outputs, tensors), path)


def write_tokens(path):
    """A residual block on five tokens of eight values: x + relu(x a + b) c."""
    numbers = np.arange(8 * 12)
    tensors = [
        constant("a", (numbers * 7 % 11).reshape(8, 12) / 16 - 0.3), constant("b", np.arange(12) / 16 - 0.25),
        constant("c", (numbers * 5 % 13).reshape(12, 8) / 16 - 0.4),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["wide"], name="wide"),
        helper.make_node("Add", ["wide", "b"], ["shifted"], name="shifted"),
        helper.make_node("Relu", ["shifted"], ["positive"], name="positive"),
        helper.make_node("MatMul", ["positive", "c"], ["narrow"], name="narrow"),
        helper.make_node("Add", ["x", "narrow"], ["y"], name="sum"),
    ]
    info = helper.make_tensor_value_info
    ports = [info(name, TensorProto.FLOAT, ["batch", 5, 8]) for name in "xy"]
    save(helper.make_graph(nodes, "tokens", ports[:1], ports[1:], tensors), path)


def constant(name, values, dtype=np.float32):
    return numpy_helper.from_array(np.array(values, dtype=dtype), name)


def write_boxes(path):
    """What a detector answers, with the layout of YOLO's eighth generation, for things that are told by their colour: for each
    cell of 8 x 8 pixels a box of 32 x 32 around its middle, and scores of how bright and how red it is."""
    cells = np.arange(8) * 8.0 + 4.0
    x, y = np.meshgrid(cells, cells)
    box = np.stack([x.ravel(), y.ravel(), np.full(64, 32.0), np.full(64, 32.0)])[None]
    weights = np.array([[20 / 3, 20 / 3, 20 / 3], [20, -10, -10]]).reshape(2, 3, 1, 1)
    tensors = [
        constant("scores.weight", weights), constant("scores.bias", [-15, -10]), constant("boxes.each", box),
        constant("scores.dims", [0, 2, 64], np.int64), constant("first", [0], np.int64), constant("boxes.dims", [4, 64], np.int64),
    ]
    nodes = [
        helper.make_node("AveragePool", ["images"], ["cells"], name="cells", kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Conv", ["cells", "scores.weight", "scores.bias"], ["logits"], name="logits"),
        helper.make_node("Reshape", ["logits", "scores.dims"], ["flat"], name="flat"),
        helper.make_node("Sigmoid", ["flat"], ["scores"], name="scores"),
        helper.make_node("Shape", ["images"], ["shape"], name="shape"),
        helper.make_node("Gather", ["shape", "first"], ["rows"], name="rows"),
        helper.make_node("Concat", ["rows", "boxes.dims"], ["all"], name="all", axis=0),
        helper.make_node("Expand", ["boxes.each", "all"], ["boxes"], name="boxes"),
        helper.make_node("Concat", ["boxes", "scores"], ["output0"], name="output0", axis=1),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("images", TensorProto.FLOAT, ["batch", 3, 64, 64])]
    outputs = [info("output0", TensorProto.FLOAT, ["batch", 6, 64])]
    save(helper.make_graph(nodes, "boxes", inputs, outputs, tensors), path, {"names": "{0: 'bright', 1: 'red'}"})


def write_text(path):
    """What a recogniser of text answers, with the layout of PaddleOCR's, for a line whose characters are colours, 8 pixels
    a place: zeros are a blank, white is a space, and each letter has another corner of the colours' cube."""
    letters = "trefoil"
    corners = [[2 * (n >> 2 & 1) - 1, 2 * (n >> 1 & 1) - 1, 2 * (n & 1) - 1] for n in range(8)]
    colours = np.array([[0, 0, 0], *corners], dtype=np.float64)
    likeness = 8 * colours, -4 * (colours**2).sum(axis=1)  # less 4 |x|^2, -4 |x - colour|^2
    tensors = [
        constant("classes.weight", likeness[0].reshape(9, 3, 1, 1)), constant("classes.bias", likeness[1]),
        constant("rows", [2], np.int64),
    ]
    nodes = [
        helper.make_node("AveragePool", ["x"], ["places"], name="places", kernel_shape=[48, 8], strides=[48, 8]),
        helper.make_node("Conv", ["places", "classes.weight", "classes.bias"], ["classes"], name="classes"),
        helper.make_node("Squeeze", ["classes", "rows"], ["along"], name="along"),
        helper.make_node("Transpose", ["along"], ["logits"], name="logits", perm=[0, 2, 1]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], name="probabilities", axis=2),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, ["batch", 3, 48, "width"])]
    outputs = [info("probabilities", TensorProto.FLOAT, ["batch", "places", 9])]
    save(helper.make_graph(nodes, "text", inputs, outputs, tensors), path, {"character": "\n".join(letters) + "\n"})


def write_recurrent(path):
    """Three recurrent layers, one behind the other, of inputs [steps, batch, 16]: an LSTM in both directions, a GRU, and a
    simple cell with relu from the last step to the first; with all outputs of the layers."""
    random = np.random.default_rng(2)
    tensors = [constant("features", [0, 0, -1], np.int64)]
    nodes, x, width = [], "x", 16
    for name, kind, gates, hidden, directions, attributes in [
        ("lstm", "LSTM", 4, 24, 2, {"direction": "bidirectional"}),
        ("gru", "GRU", 3, 32, 1, {"linear_before_reset": 1}),
        ("rnn", "RNN", 1, 16, 1, {"direction": "reverse", "activations": ["Relu"]}),
    ]:
        shapes = {"w": [gates * hidden, width], "r": [gates * hidden, hidden], "b": [2 * gates * hidden]}
        for part, shape in shapes.items():
            values = random.uniform(-0.5, 0.5, [directions, *shape]) / (width**0.5 if part == "w" else hidden**0.5)
            tensors.append(constant(f"{name}.{part}", values))
        outputs = [f"{name}.all", f"{name}.h", f"{name}.c"][: 3 if kind == "LSTM" else 2]
        weights = [f"{name}.{part}" for part in shapes]
        nodes.append(helper.make_node(kind, [x, *weights], outputs, name=name, hidden_size=hidden, **attributes))
        # As PyTorch's exporter joins directions.
        nodes.append(helper.make_node("Transpose", [f"{name}.all"], [f"{name}.turned"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"{name}.turned", "features"], [f"{name}.y"]))
        x, width = f"{name}.y", directions * hidden
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, ["steps", "batch", 16])]
    outputs = [info("rnn.y", TensorProto.FLOAT, ["steps", "batch", 16])]
    outputs += [info(name, TensorProto.FLOAT, [d, "batch", h]) for name, d, h in
                [("lstm.h", 2, 24), ("lstm.c", 2, 24), ("gru.h", 1, 32), ("rnn.h", 1, 16)]]
    save(helper.make_graph(nodes, "recurrent", inputs, outputs, tensors), path)


def write_lstm(path, steps, hidden, features):
    """One LSTM of any size, to be timed; nothing is kept of it."""
    random = np.random.default_rng(3)
    shapes = {"w": [4 * hidden, features], "r": [4 * hidden, hidden], "b": [8 * hidden]}
    tensors = [constant(part, random.uniform(-1, 1, [1, *shape]) / hidden**0.5) for part, shape in shapes.items()]
    nodes = [
        helper.make_node("LSTM", ["x", *shapes], ["all"], name="lstm", hidden_size=hidden),
        helper.make_node("Squeeze", ["all", "directions"], ["y"]),
    ]
    tensors.append(constant("directions", [1], np.int64))
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, [steps, "batch", features])]
    outputs = [info("y", TensorProto.FLOAT, [steps, "batch", hidden])]
    save(helper.make_graph(nodes, "lstm", inputs, outputs, tensors), path)


def save(g, path, metadata={}):
    m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    helper.set_model_props(m, metadata)
    onnx.save(m, path)


def main():
    if sys.argv[1:2] == ["--lstm"]:
        write_lstm(sys.argv[2], *map(int, sys.argv[3:]))
        return
    if sys.argv[1:]:
        print(json.dumps(model(sys.argv[1]), ensure_ascii=False))
        return
    HERE.mkdir(exist_ok=True)
    written = {"graph": write_graph, "tensors": write_tensors, "external": write_external, "images": write_images,
               "values": write_values, "records": write_records, "tokens": write_tokens, "boxes": write_boxes,
               "text": write_text, "recurrent": write_recurrent}
    for name, write in written.items():
        path = HERE / f"{name}.onnx"
        write(path)
        path.with_suffix(".json").write_text(json.dumps(model(path), ensure_ascii=False) + "\n")


main()
