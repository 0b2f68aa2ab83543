//! Every field of files that Python's `onnx` wrote, compared with the fields that Python reads from them.

use serde_json::{Value, json};
use trefoil::onnx::{Attribute, AttributeValue, DataType, Dim, File, Function, GraphProto, NodeProto, Opsets, Tensor};
use trefoil::onnx::{ValueInfo, ValueType};

use super::{FILES, data};

/// Up to 64 bytes of elements in hexadecimal, or the checksum of more.
fn elements(file: &File, tensor: &Tensor) -> Value {
    if tensor.dtype == DataType::String {
        return json!("text");
    }
    let mut bytes = vec![0xA5; tensor.bytes()];
    file.read(tensor, &mut bytes).unwrap();
    if bytes.len() > 64 {
        let mut checksum = flate2::Crc::new();
        checksum.update(&bytes);
        return json!(format!("crc32 {}", checksum.sum()));
    }
    json!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn tensor(file: &File, tensor: &Tensor) -> Value {
    assert_eq!(tensor.elems(), tensor.dims.iter().product::<usize>());
    json!({
        "name": tensor.name,
        "dtype": tensor.dtype.name(),
        "dims": tensor.dims,
        "elements": elements(file, tensor),
    })
}

/// A text with a character for each byte, by its number.
fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

fn attribute(file: &File, attribute: &Attribute) -> Value {
    let list = |items: Vec<Value>| Value::Array(items);
    let (kind, value) = match &attribute.value {
        AttributeValue::Float(number) => ("FLOAT", json!(number)),
        AttributeValue::Int(number) => ("INT", json!(number)),
        AttributeValue::String(bytes) => ("STRING", json!(text(bytes))),
        AttributeValue::Tensor(one) => ("TENSOR", tensor(file, one)),
        AttributeValue::Graph(one) => ("GRAPH", graph(file, one)),
        AttributeValue::Floats(numbers) => ("FLOATS", json!(numbers)),
        AttributeValue::Ints(numbers) => ("INTS", json!(numbers)),
        AttributeValue::Strings(texts) => ("STRINGS", json!(texts.iter().map(|t| text(t)).collect::<Vec<_>>())),
        AttributeValue::Tensors(all) => ("TENSORS", list(all.iter().map(|one| tensor(file, one)).collect())),
        AttributeValue::Graphs(all) => ("GRAPHS", list(all.iter().map(|one| graph(file, one)).collect())),
        AttributeValue::Type => ("TYPE_PROTO", Value::Null),
        AttributeValue::Types => ("TYPE_PROTOS", Value::Null),
        AttributeValue::Reference(name) => ("reference", json!(name)),
        other => panic!("{other:?}"),
    };
    json!({"name": attribute.name, "type": kind, "value": value})
}

fn node(file: &File, node: &NodeProto) -> Value {
    json!({
        "name": node.name,
        "op_type": node.op_type,
        "domain": node.domain,
        "overload": node.overload,
        "inputs": node.inputs,
        "outputs": node.outputs,
        "attributes": node.attributes.iter().map(|a| attribute(file, a)).collect::<Vec<_>>(),
    })
}

fn dim(dim: &Dim) -> Value {
    match dim {
        Dim::Unknown => Value::Null,
        Dim::Named(name) => json!(name),
        Dim::Fixed(size) => json!(size),
    }
}

fn value(value: &ValueInfo) -> Value {
    match &value.kind {
        ValueType::Unknown => json!({"name": value.name, "kind": "unknown"}),
        ValueType::Other(kind) => json!({"name": value.name, "kind": kind}),
        ValueType::Tensor { dtype, dims } => json!({
            "name": value.name,
            "kind": "tensor",
            "dtype": dtype.map(DataType::name),
            "dims": dims.as_ref().map(|dims| dims.iter().map(dim).collect::<Vec<_>>()),
        }),
        other => panic!("{other:?}"),
    }
}

fn values(values: &[ValueInfo]) -> Vec<Value> {
    values.iter().map(value).collect()
}

fn graph(file: &File, graph: &GraphProto) -> Value {
    json!({
        "name": graph.name,
        "nodes": graph.nodes.iter().map(|n| node(file, n)).collect::<Vec<_>>(),
        "initializers": graph.initializers.iter().map(|t| tensor(file, t)).collect::<Vec<_>>(),
        "inputs": values(&graph.inputs),
        "outputs": values(&graph.outputs),
        "values": values(&graph.values),
    })
}

fn opsets(opsets: &Opsets) -> Value {
    json!(opsets.iter().collect::<Vec<_>>())
}

fn function(file: &File, function: &Function) -> Value {
    json!({
        "name": function.name,
        "domain": function.domain,
        "overload": function.overload,
        "inputs": function.inputs,
        "outputs": function.outputs,
        "attributes": function.attributes,
        "defaults": function.defaults.iter().map(|a| attribute(file, a)).collect::<Vec<_>>(),
        "nodes": function.nodes.iter().map(|n| node(file, n)).collect::<Vec<_>>(),
        "opsets": opsets(&function.opsets),
        "values": values(&function.values),
    })
}

fn model(file: &File) -> Value {
    let model = file.model();
    json!({
        "ir_version": model.ir_version,
        "producer_name": model.producer_name,
        "producer_version": model.producer_version,
        "domain": model.domain,
        "model_version": model.model_version,
        "opsets": opsets(&model.opsets),
        "metadata": model.metadata,
        "graph": graph(file, &model.graph),
        "functions": model.functions.iter().map(|f| function(file, f)).collect::<Vec<_>>(),
    })
}

/// The first place where two values differ.
fn difference(at: &str, expected: &Value, found: &Value) -> Option<String> {
    match (expected, found) {
        (Value::Object(a), Value::Object(b)) if a.len() == b.len() => {
            a.iter().find_map(|(key, a)| difference(&format!("{at}.{key}"), a, b.get(key).unwrap_or(&Value::Null)))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().find_map(|(i, (a, b))| difference(&format!("{at}[{i}]"), a, b))
        }
        // Numbers are compared as f32, because readers of JSON differ in the last digit of an f64.
        (Value::Number(a), Value::Number(b))
            if a.is_f64() && a.as_f64().map(|a| a as f32) == b.as_f64().map(|b| b as f32) =>
        {
            None
        }
        _ => (expected != found).then(|| format!("{at}: expected {expected}, found {found}")),
    }
}

#[test]
fn every_field_is_what_python_finds() {
    for name in FILES {
        let file = File::open(data(&format!("{name}.onnx"))).unwrap();
        let expected = std::fs::read(data(&format!("{name}.json"))).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let difference = difference(name, &expected, &model(&file));
        assert!(difference.is_none(), "{}", difference.unwrap());
    }
}
