//! A graph: its nodes, constants, inputs and outputs.

use std::collections::HashSet;

use super::attribute::AttributeValue;
use super::names;
use super::node::NodeProto;
use super::reader::{Message, Reader};
use super::tensor::{Tensor, TensorFields};
use super::value::ValueInfo;
use super::wire::{Field, Place, Schema};
use crate::error::Error;

/// A graph, as it stands in the file.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct GraphProto {
    /// The graph's name.
    pub name: String,
    /// The graph's nodes. The format requires each node to come after the nodes whose results it reads; a file may violate
    /// that.
    pub nodes: Vec<NodeProto>,
    /// The graph's constants, each name once. A constant with the name of an input is that input's default.
    pub initializers: Vec<Tensor>,
    /// The inputs, each name once. Old files list constants here, too.
    pub inputs: Vec<ValueInfo>,
    /// The outputs.
    pub outputs: Vec<ValueInfo>,
    /// Types of other values, as the file claims them.
    pub values: Vec<ValueInfo>,
}

impl GraphProto {
    /// The names that its nodes and outputs read, with those that bodies of its nodes read.
    pub(crate) fn names_read(&self) -> HashSet<&str> {
        let (mut names, mut graphs) = (HashSet::new(), vec![self]);
        while let Some(graph) = graphs.pop() {
            names.extend(graph.outputs.iter().map(|output| output.name.as_str()));
            for node in &graph.nodes {
                names.extend(node.inputs.iter().map(String::as_str));
                graphs.extend(node.attributes.iter().filter_map(|attribute| match &attribute.value {
                    AttributeValue::Graph(body) => Some(&**body),
                    _ => None,
                }));
            }
        }
        names
    }
}

impl Message for GraphProto {
    type Made = Self;
    const SCHEMA: Schema = Schema {
        message: "GraphProto",
        fields: &[
            (1, "node"),
            (2, "name"),
            (5, "initializer"),
            (11, "input"),
            (12, "output"),
            (13, "value_info"),
            (15, "sparse_initializer"),
        ],
    };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        match field.place.name {
            "node" => reader.push_message::<NodeProto>(&mut self.nodes, &field),
            "name" => reader.string(&field).map(|name| self.name = name),
            "initializer" => reader.push_message::<TensorFields>(&mut self.initializers, &field),
            "input" => reader.push_message::<ValueInfo>(&mut self.inputs, &field),
            "output" => reader.push_message::<ValueInfo>(&mut self.outputs, &field),
            "value_info" => reader.push_message::<ValueInfo>(&mut self.values, &field),
            "sparse_initializer" => Err(reader.unsupported(field.place, "a sparse tensor", "store it as a dense one")),
            _ => Ok(()),
        }
    }

    fn finish(self, place: Place, reader: &mut Reader<'_>) -> Result<Self, Error> {
        names::check(self.initializers.iter().map(|tensor| tensor.name.as_str()), "an initializer", place, reader)?;
        names::check(self.inputs.iter().map(|input| input.name.as_str()), "an input", place, reader)?;
        Ok(self)
    }
}
