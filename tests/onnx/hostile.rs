//! Invalid files: errors say what is wrong and where.

use trefoil::Error;
use trefoil::onnx::{AttributeValue, File};

use super::refused;
use super::write::{attribute, bytes, initializer, int, message, model, node, varint};

/// A field of a wire type, with this content.
fn field(number: u32, kind: u32, content: &[u8]) -> Vec<u8> {
    [varint(u64::from(number << 3 | kind)), content.to_vec()].concat()
}

fn expect(cases: &[(&str, Vec<u8>)]) {
    for (what, file) in cases {
        let said = refused(file.clone());
        let told = said.strip_prefix("<memory>: ").expect("it begins with the path");
        let place = told.strip_prefix("not an ONNX file: ").unwrap_or(told);
        assert!(place.starts_with("byte ") && told.contains(what), "expected `{what}`, found `{said}`");
    }
}

#[test]
fn what_is_no_onnx_file_is_refused() {
    expect(&[
        ("byte 0: ModelProto: not an ONNX file, or cut short: there is no graph in it", vec![]),
        ("not an ONNX file, or cut short: there is no graph in it", int(1, 10)),
        ("byte 0: ModelProto: not an ONNX file: expected an ir_version, found 0", message(7, &[])),
        ("expected an ir_version, found -1", [int(1, -1), message(7, &[])].concat()),
        ("byte 0: ModelProto, field 4294967", [varint(4_294_967 << 3 | 4), vec![0]].concat()),
        ("not an ONNX file: byte ", b"PK\x03\x04\x14\0\0\0\x08\0".to_vec()),
        ("not an ONNX file: byte 0: ", b"#!/usr/bin/env python3\n".to_vec()),
        ("not an ONNX file: byte 2: ModelProto, field 13", b"hello, world".to_vec()),
        ("not an ONNX file: byte 0: ModelProto.ir_version", b"\n\n\n\n\n\n\n\n\n\n\n\n".to_vec()),
        ("not an ONNX file: byte ", [&64_u64.to_le_bytes()[..], br#"{"w":{"dtype":"F32"}}"#].concat()),
        ("not an ONNX file: byte ", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec()),
        ("byte 4: ModelProto.graph: a second graph", [int(1, 10), message(7, &[]), message(7, &[])].concat()),
    ]);
}

#[test]
fn lengths_that_lie_are_refused() {
    let long = |length: u64| field(1, 2, &varint(length));
    expect(&[
        (
            "byte 4: GraphProto.node: expected 0 bytes at most, to the end of GraphProto, found a length of 1",
            model(&[long(1)]),
        ),
        ("found a length of 18446744073709551615", model(&[long(u64::MAX)])),
        ("found a length of 9223372036854775808", model(&[long(1 << 63)])),
        // The value would end within the file, but behind the end of its message.
        (
            "byte 6: NodeProto.op_type: expected 1 bytes at most, to the end of NodeProto, found a length of 3",
            model(&[message(1, &[field(4, 2, &[3, b'A'])]), bytes(2, "abc")]),
        ),
        ("found a length of 4611686018427387904", model(&[initializer(1, &[], &[field(9, 2, &varint(1 << 62))])])),
        ("TensorProto.dims: the varint at byte", model(&[initializer(1, &[], &[bytes(1, [0x80])])])),
        (
            "AttributeProto.floats: expected 4 bytes, found 2",
            model(&[node("A", &[attribute("a", &[bytes(7, [0; 6])])])]),
        ),
    ]);
}

#[test]
fn what_the_wire_format_does_not_have_is_refused() {
    expect(&[
        ("ModelProto.graph: expected a value, found a group", field(7, 3, &[])),
        ("ModelProto, field 99: expected a value, found a group", field(99, 3, &[field(99, 4, &[])].concat())),
        ("GraphProto.node: expected a value, found a group", model(&[field(1, 3, &[])])),
        ("expected a wire type from 0 to 5, found 6", field(1, 6, &[0])),
        ("expected a wire type from 0 to 5, found 7", field(1, 7, &[0])),
        ("expected the number of a field, found the tag 2", vec![2, 0]),
        ("expected the number of a field, found the tag 34359738369", varint(1 << 35 | 1)),
        ("ModelProto.ir_version: the varint at byte 1 has more than 64 bits", field(1, 0, &[0x80; 11])),
        ("has more than 64 bits", [&[8][..], &[0xFF; 9], &[0x7F]].concat()),
        ("the varint at byte 1 is cut short", vec![8, 0x80]),
    ]);
}

#[test]
fn wrong_wire_types_are_refused() {
    let in_node = |fields: Vec<u8>| model(&[node("A", &[fields])]);
    let in_attribute = |fields: Vec<u8>| in_node(attribute("a", &[fields]));
    let in_tensor = |fields: Vec<u8>| model(&[initializer(1, &[1], &[fields])]);
    let eight = |number| field(number, 1, &[0; 8]);
    let four = |number| field(number, 5, &[0; 4]);
    expect(&[
        ("ModelProto.ir_version: expected a varint, found bytes with a length", bytes(1, "10")),
        ("ModelProto.graph: expected bytes with a length, found a varint", int(7, 1)),
        ("GraphProto.node: expected bytes with a length, found eight bytes", model(&[eight(1)])),
        ("NodeProto.op_type: expected bytes with a length, found a varint", in_node(int(4, 1))),
        ("NodeProto.input: expected bytes with a length, found four bytes", in_node(four(1))),
        ("AttributeProto.f: expected four bytes, found a varint", in_attribute(int(2, 1))),
        ("AttributeProto.i: expected a varint, found eight bytes", in_attribute(eight(3))),
        ("AttributeProto.floats: expected four bytes each, found a varint", in_attribute(int(7, 1))),
        ("AttributeProto.ints: expected varints, found four bytes", in_attribute(four(8))),
        ("AttributeProto.t: expected bytes with a length, found a varint", in_attribute(int(5, 1))),
        ("TensorProto.dims: expected varints, found eight bytes", in_tensor(eight(1))),
        ("TensorProto.raw_data: expected bytes with a length, found a varint", in_tensor(int(9, 1))),
        ("TensorProto.float_data: expected bytes with a length, found eight bytes", in_tensor(eight(4))),
        ("TensorProto.int64_data: expected bytes with a length, found four bytes", in_tensor(four(7))),
        ("TensorProto.data_location: expected a varint, found bytes with a length", in_tensor(bytes(14, "1"))),
    ]);
    let said = refused(in_node(bytes(3, [0xC3, 0x28])));
    assert!(said.contains("NodeProto.name: invalid utf-8 sequence"), "{said}");
}

/// Graphs within one another, each in an attribute of a node.
fn nested(graphs: usize) -> Vec<u8> {
    let mut graph = Vec::new();
    for _ in 1..graphs {
        graph = node("If", &[attribute("then_branch", &[bytes(6, graph)])]);
    }
    model(&[graph])
}

#[test]
fn graphs_nest_up_to_a_limit() {
    let file = File::from_bytes(nested(33)).unwrap();
    let (mut graph, mut graphs) = (&file.model().graph, 1);
    while let Some(AttributeValue::Graph(branch)) = graph.nodes.first().and_then(|node| node.attribute("then_branch")) {
        (graph, graphs) = (branch, graphs + 1);
    }
    assert_eq!(graphs, 33);
    for graphs in [34, 1000] {
        let said = refused(nested(graphs));
        assert!(said.contains(": expected at most 100 messages within one another"), "{said}");
    }
    // Fields that are not read may be nested to any depth.
    let mut kind = Vec::new();
    (0..1000).for_each(|_| kind = message(4, &[message(1, &[kind.clone()])]));
    File::from_bytes(model(&[message(13, &[bytes(1, "s"), bytes(2, kind)])])).unwrap();
}

#[test]
fn missing_and_repeated_names_are_refused() {
    let input = |name: &str| message(11, &[bytes(1, name)]);
    let attributes = |names: [&str; 2]| node("A", &names.map(|name| attribute(name, &[int(3, 1), int(20, 2)])));
    let function = |fields: &[Vec<u8>]| [model(&[]), message(25, fields)].concat();
    let named = |fields: Vec<u8>| function(&[bytes(1, "f"), fields]);
    let opset = |domain: &str, version| message(8, &[bytes(1, domain), int(2, version)]);
    let weight = initializer(1, &[0], &[]);
    expect(&[
        ("byte 4: NodeProto: node `n` has no op_type", model(&[message(1, &[bytes(3, "n")])])),
        ("NodeProto: an attribute has no name", model(&[attributes(["a", ""])])),
        ("NodeProto: an attribute `a` is there twice", model(&[attributes(["a", "a"])])),
        ("byte 2: GraphProto: an initializer has no name", model(&[message(5, &[int(1, 0), int(2, 1)])])),
        ("GraphProto: an initializer `w` is there twice", model(&[weight.clone(), weight])),
        ("GraphProto: an input has no name", model(&[input("x"), input("")])),
        ("GraphProto: an input `x` is there twice", model(&[input("x"), input("y"), input("x")])),
        ("FunctionProto: a function has no name", function(&[bytes(10, "d")])),
        ("FunctionProto: an input `x` is there twice", named([bytes(4, "x"), bytes(4, "x")].concat())),
        ("FunctionProto: an attribute `a` is there twice", named([bytes(6, "a"), bytes(6, "a")].concat())),
        (
            "ModelProto: the function `f` of `` is there twice",
            [named(vec![]), named(bytes(10, "ai.onnx"))[4..].to_vec()].concat(),
        ),
        ("two versions of the operators of ``", [model(&[]), opset("", 13), opset("ai.onnx", 14)].concat()),
        ("OperatorSetIdProto: expected a version of `d` from 1, found 0", [model(&[]), opset("d", 0)].concat()),
    ]);
    let same = [model(&[]), opset("", 13), opset("ai.onnx", 13)].concat();
    assert_eq!(File::from_bytes(same).unwrap().model().opsets.version(""), Some(13));
}

#[test]
fn sizes_that_overflow_or_lie_are_refused() {
    let tensor = |dtype, dims: &[i64], fields: &[Vec<u8>]| model(&[initializer(dtype, dims, fields)]);
    let raw = |bytes_of| bytes(9, vec![0; bytes_of]);
    let max = i64::MAX;
    expect(&[
        (
            "tensor `w`: the size of FLOAT of shape [9223372036854775807, 9223372036854775807] overflows",
            tensor(1, &[max, max], &[]),
        ),
        ("the size of FLOAT of shape [9223372036854775807] overflows", tensor(1, &[max], &[])),
        ("expected 9223372036854775807 bytes, found 0", tensor(2, &[max], &[])),
        (
            "tensor `w`: the size of FLOAT of shape [4294967296, 4294967296] overflows",
            tensor(1, &[1 << 32, 1 << 32], &[]),
        ),
        ("tensor `w`: expected dimensions from 0, found -1", tensor(1, &[-1, 4], &[])),
        ("tensor `w`: expected dimensions from 0, found -9223372036854775808", tensor(1, &[i64::MIN], &[])),
        ("FLOAT of shape [2, 3]: expected 24 bytes, found 23", tensor(1, &[2, 3], &[raw(23)])),
        ("FLOAT of shape [2, 3]: expected 24 bytes, found 25", tensor(1, &[2, 3], &[raw(25)])),
        ("FLOAT of shape []: expected 4 bytes, found 0", tensor(1, &[], &[])),
        ("FLOAT of shape [0]: expected 0 bytes, found 4", tensor(1, &[0], &[raw(4)])),
        ("UINT4 of shape [3]: expected 2 bytes, found 3", tensor(21, &[3], &[raw(3)])),
        ("FLOAT of shape [2]: expected 8 bytes, found 4", tensor(1, &[2], &[bytes(4, [0; 4])])),
        ("STRING of shape [2]: expected 2 texts, found 1", tensor(8, &[2], &[bytes(6, "a")])),
        ("STRING of shape [2]: expected elements in string_data, found some in raw_data", tensor(8, &[2], &[raw(2)])),
        (
            "INT64 of shape [1]: expected elements in int64_data, found some in int32_data",
            tensor(7, &[1], &[bytes(5, [1])]),
        ),
        (
            "TensorProto.float_data: elements of the tensor are in raw_data, too",
            tensor(1, &[1], &[raw(4), bytes(4, [0; 4])]),
        ),
        ("TensorProto.raw_data: elements of the tensor are in raw_data, too", tensor(1, &[1], &[raw(4), raw(4)])),
        ("tensor `w`: expected a data_type from 1 to 28, found 0", tensor(0, &[1], &[raw(4)])),
        ("tensor `w`: expected a data_type from 1 to 28, found 29", tensor(29, &[1], &[raw(4)])),
    ]);
    let empty = File::from_bytes(tensor(1, &[max, 0, max], &[])).unwrap();
    assert_eq!(empty.model().graph.initializers[0].bytes(), 0);
}

#[test]
fn attributes_have_one_value_of_their_type() {
    let a = |fields: &[Vec<u8>]| model(&[node("A", &[attribute("a", fields)])]);
    expect(&[
        ("AttributeProto: attribute `a` has no value; its type is UNDEFINED", a(&[])),
        ("AttributeProto: attribute `a` has no value; its type is TENSOR", a(&[int(20, 4)])),
        ("AttributeProto: attribute `a` has no value; its type is of no known number", a(&[int(20, 77)])),
        ("AttributeProto: attribute `a` is declared as FLOAT, but is INT", a(&[int(20, 1), int(3, 5)])),
        ("attribute `a` is declared as of no known number, but is INT", a(&[int(20, -1), int(3, 5)])),
        ("AttributeProto.ints: a second value of the attribute `a`", a(&[int(3, 5), int(8, 5)])),
        ("AttributeProto.i: a second value of the attribute `a`", a(&[int(8, 5), int(3, 5)])),
        ("AttributeProto.i: a second value of the attribute `a`", a(&[int(3, 5), int(3, 6)])),
        ("AttributeProto: a second value of the attribute `a`", a(&[int(3, 5), bytes(21, "b")])),
        ("AttributeProto.type_protos: a second value of the attribute `a`", a(&[int(3, 5), message(15, &[])])),
    ]);
    let of = |fields: &[Vec<u8>]| {
        File::from_bytes(a(fields)).unwrap().model().graph.nodes[0].attribute("a").cloned().unwrap()
    };
    assert_eq!(of(&[int(20, 2)]), AttributeValue::Int(0), "writers leave zeros out");
    assert_eq!(of(&[int(3, 5)]), AttributeValue::Int(5), "old files declare no types");
    assert_eq!(of(&[message(15, &[]), message(15, &[])]), AttributeValue::Types);
    assert_eq!(of(&[int(20, 7), int(8, 5), bytes(8, [6, 7]), int(8, -1)]), AttributeValue::Ints(vec![5, 6, 7, -1]));
}

#[test]
fn what_is_not_read_is_said_to_be_unsupported() {
    let sparse = model(&[node("A", &[attribute("a", &[message(22, &[])])])]);
    for (what, file) in [
        ("byte 4: GraphProto.sparse_initializer: a sparse tensor is not supported", model(&[message(15, &[])])),
        ("AttributeProto.sparse_tensor: a sparse tensor is not supported", sparse),
        (
            "TensorProto.segment: a tensor in segments is not supported",
            model(&[initializer(1, &[1], &[message(3, &[])])]),
        ),
    ] {
        let error = File::from_bytes(file).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { .. }) && error.to_string().contains(what), "{error}");
    }
}

#[test]
fn fields_that_nobody_knows_are_skipped() {
    let unknown = [field(99, 0, &[1]), field(99, 1, &[0; 8]), bytes(99, "x"), field(99, 5, &[0; 4])].concat();
    let n = node("A", &[unknown.clone(), attribute("a", &[unknown.clone(), int(3, 1)])]);
    let value = message(11, &[bytes(1, "x"), unknown.clone(), bytes(2, &unknown)]);
    let file = [unknown.clone(), model(&[unknown.clone(), n, value, initializer(1, &[0], &[unknown])])].concat();
    let file = File::from_bytes(file).unwrap();
    let graph = &file.model().graph;
    assert_eq!((graph.nodes.len(), graph.initializers.len(), graph.inputs.len()), (1, 1, 1));
}
