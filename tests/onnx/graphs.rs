//! Parts of graphs in ONNX files.

use super::write::{attribute, bytes, int, message, model};

pub const FLOAT: i64 = 1;
pub const INT64: i64 = 7;
pub const BOOL: i64 = 9;

/// A dimension's size, or its name.
pub enum Dim {
    Fixed(i64),
    Named(&'static str),
}

fn port(field: u32, name: &str, dtype: i64, dims: &[Dim]) -> Vec<u8> {
    let dim = |dim: &Dim| match dim {
        Dim::Fixed(size) => message(1, &[int(1, *size)]),
        Dim::Named(name) => message(1, &[bytes(2, name)]),
    };
    let shape = message(2, &dims.iter().map(dim).collect::<Vec<_>>());
    message(field, &[bytes(1, name), message(2, &[message(1, &[int(1, dtype), shape])])])
}

pub fn input(name: &str, dtype: i64, dims: &[Dim]) -> Vec<u8> {
    port(11, name, dtype, dims)
}

pub fn output(name: &str) -> Vec<u8> {
    port(12, name, FLOAT, &[])
}

/// An input of two elements of f32.
pub fn x() -> Vec<u8> {
    input("x", FLOAT, &[Dim::Fixed(2)])
}

/// A node named after its first output.
pub fn node(op_type: &str, inputs: &[&str], outputs: &[&str], more: &[Vec<u8>]) -> Vec<u8> {
    node_in(1, op_type, inputs, outputs, more)
}

pub fn node_in(field: u32, op_type: &str, inputs: &[&str], outputs: &[&str], more: &[Vec<u8>]) -> Vec<u8> {
    let names = |number, names: &[&str]| names.iter().map(|name| bytes(number, name)).collect::<Vec<_>>().concat();
    message(field, &[names(1, inputs), names(2, outputs), bytes(4, op_type), more.concat()])
}

/// An attribute with one integer.
pub fn whole(name: &str, value: i64) -> Vec<u8> {
    attribute(name, &[int(20, 2), int(3, value)])
}

pub fn ints(name: &str, values: &[i64]) -> Vec<u8> {
    attribute(name, &[int(20, 7), values.iter().map(|&value| int(8, value)).collect::<Vec<_>>().concat()])
}

pub fn text(name: &str, value: &str) -> Vec<u8> {
    attribute(name, &[int(20, 3), bytes(4, value)])
}

/// An attribute with a graph.
pub fn body(name: &str, graph: &[Vec<u8>]) -> Vec<u8> {
    attribute(name, &[int(20, 5), message(6, graph)])
}

/// A constant of integers with one dimension.
pub fn vector(name: &str, values: &[i64]) -> Vec<u8> {
    node("Constant", &[], &[name], &[ints("value_ints", values)])
}

pub fn scalar(name: &str, value: i64) -> Vec<u8> {
    node("Constant", &[], &[name], &[whole("value_int", value)])
}

/// A function of the domain `f`.
pub fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: &[Vec<u8>]) -> Vec<u8> {
    let names = |number, names: &[&str]| names.iter().map(|name| bytes(number, name)).collect::<Vec<_>>().concat();
    let opsets = [message(9, &[int(2, 18)]), message(9, &[bytes(1, "f"), int(2, 1)])].concat();
    message(25, &[bytes(1, name), bytes(10, "f"), names(4, inputs), names(5, outputs), nodes.concat(), opsets])
}

/// A call of a function of the domain `f`.
pub fn call(field: u32, name: &str, inputs: &[&str], outputs: &[&str]) -> Vec<u8> {
    node_in(field, name, inputs, outputs, &[bytes(7, "f")])
}

/// A file with this graph, and with functions or other fields.
pub fn file(graph: &[Vec<u8>], more: &[Vec<u8>]) -> Vec<u8> {
    let opsets = [message(8, &[int(2, 18)]), message(8, &[bytes(1, "f"), int(2, 1)])].concat();
    [model(graph), opsets, more.concat()].concat()
}
