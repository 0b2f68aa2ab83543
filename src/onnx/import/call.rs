//! The inputs and attributes of a node that is imported.

use std::ops::{Deref, DerefMut};

use super::context::{Context, Item, Outcome};
use super::scope::Scope;
use super::shapes::axis_of;
use crate::graph::ValueId;
use crate::onnx::{AttributeValue, GraphProto, NodeProto, Tensor};

/// A node that is imported, and its surroundings.
pub(in crate::onnx) struct Call<'c, 'm> {
    pub cx: &'c mut Context<'m>,
    pub node: &'m NodeProto,
    /// The version of the operators in the node's domain.
    pub version: i64,
    pub inputs: Vec<Option<Item>>,
    pub scope: &'c Scope<'c, 'm>,
}

impl<'m> Deref for Call<'_, 'm> {
    type Target = Context<'m>;

    fn deref(&self) -> &Self::Target {
        self.cx
    }
}

impl DerefMut for Call<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.cx
    }
}

impl<'m> Call<'_, 'm> {
    /// An input, which must be there.
    pub fn x(&self, index: usize) -> Outcome<ValueId> {
        self.maybe(index).ok_or_else(|| format!("input {index} is not a tensor, or left out"))
    }

    /// An input; `None` if it is left out or is no tensor.
    pub fn maybe(&self, index: usize) -> Option<ValueId> {
        match self.inputs.get(index)? {
            Some(Item::Tensor(value)) => Some(*value),
            _ => None,
        }
    }

    /// All inputs, which must be there.
    pub fn all(&self) -> Outcome<Vec<ValueId>> {
        (0..self.inputs.len()).map(|index| self.x(index)).collect()
    }

    /// Whether an output is wanted.
    pub fn wants(&self, index: usize) -> bool {
        self.node.outputs.get(index).is_some_and(|name| !name.is_empty())
    }

    /// The integers of an input; `None` if the input is left out.
    pub fn ints_at(&self, index: usize, what: &str) -> Outcome<Option<Vec<i64>>> {
        self.maybe(index).map(|value| self.ints(value, what)).transpose()
    }

    /// The single integer of an input; `None` if the input is left out.
    pub fn int_at(&self, index: usize, what: &str) -> Outcome<Option<i64>> {
        match self.ints_at(index, what)?.as_deref() {
            None => Ok(None),
            Some([one]) => Ok(Some(*one)),
            Some(all) => Err(format!("{what}: expected one number, found {}", all.len())),
        }
    }

    pub fn attribute(&self, name: &str) -> Option<&'m AttributeValue> {
        self.scope.resolve(self.node.attribute(name)?)
    }

    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            AttributeValue::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub fn int_or(&self, name: &str, default: i64) -> i64 {
        self.int(name).unwrap_or(default)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.int_or(name, 0) != 0
    }

    /// The attribute of this name as a size; `None` if it is absent.
    pub fn size(&self, name: &str) -> Outcome<Option<usize>> {
        self.int(name).map(|value| super::shapes::size_of_dim(value, name)).transpose()
    }

    pub fn float(&self, name: &str) -> Option<f64> {
        match self.attribute(name)? {
            AttributeValue::Float(value) => Some(f64::from(*value)),
            _ => None,
        }
    }

    pub fn float_or(&self, name: &str, default: f64) -> f64 {
        self.float(name).unwrap_or(default)
    }

    pub fn text_or(&self, name: &str, default: &'static str) -> &'m str {
        self.attribute(name).and_then(AttributeValue::as_str).unwrap_or(default)
    }

    pub fn ints_attr(&self, name: &str) -> Option<&'m [i64]> {
        match self.attribute(name)? {
            AttributeValue::Ints(values) => Some(values),
            _ => None,
        }
    }

    pub fn floats_attr(&self, name: &str) -> Option<&'m [f32]> {
        match self.attribute(name)? {
            AttributeValue::Floats(values) => Some(values),
            _ => None,
        }
    }

    pub fn texts_attr(&self, name: &str) -> Option<Vec<String>> {
        match self.attribute(name)? {
            AttributeValue::Strings(all) => {
                Some(all.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
            }
            _ => None,
        }
    }

    pub fn tensor_attr(&self, name: &str) -> Option<&'m Tensor> {
        match self.attribute(name)? {
            AttributeValue::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    pub fn graph_attr(&self, name: &str) -> Outcome<&'m GraphProto> {
        match self.attribute(name) {
            Some(AttributeValue::Graph(graph)) => Ok(graph),
            _ => Err(format!("{name}: expected a graph")),
        }
    }

    /// The attribute of this name, or its default, as an axis.
    pub fn axis_attr(&self, name: &str, default: i64, rank: usize) -> Outcome<usize> {
        axis_of(self.int_or(name, default), rank)
    }

    /// Imports a body for these inputs; returns its outputs.
    pub fn body(&mut self, graph: &'m GraphProto, inputs: Vec<Item>) -> Outcome<Vec<Item>> {
        self.scope.body(self.cx, graph, inputs)
    }
}
