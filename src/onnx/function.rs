//! Operators that a model defines by means of other operators.

use super::attribute::{Attribute, AttributeFields};
use super::model::{OpsetEntry, Opsets, standard};
use super::names;
use super::node::NodeProto;
use super::reader::{Message, Reader};
use super::value::ValueInfo;
use super::wire::{Field, Place, Schema};
use crate::error::Error;

/// A function: a node with the function's domain and name, and overload if it has one, stands for the nodes of the
/// function.
///
/// ```
/// use trefoil::onnx::{AttributeValue, File};
/// let file = File::open("tests/data/onnx/graph.onnx")?;
/// let function = &file.model().functions[0];
/// assert_eq!((function.domain.as_str(), function.name.as_str()), ("trefoil.test", "Scaled"));
/// assert_eq!((function.attributes.as_slice(), function.defaults[0].name.as_str()), (&["by".to_string()][..], "to"));
/// let constant = &function.nodes[0];
/// assert_eq!(constant.attribute("value_float"), Some(&AttributeValue::Reference("by".into())));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Function {
    /// The function's name; never empty.
    pub name: String,
    /// The function's domain; empty for the standard one.
    pub domain: String,
    /// The name of the overload, if there are several functions of one name, since version 10 of the format; empty
    /// otherwise.
    pub overload: String,
    /// The names of its parameters inside the function, each name once. A caller may leave out the last ones.
    pub inputs: Vec<String>,
    /// The names of its results inside the function.
    pub outputs: Vec<String>,
    /// Attributes of the caller's node that have no default.
    pub attributes: Vec<String>,
    /// Attributes of the caller's node with their defaults.
    pub defaults: Vec<Attribute>,
    /// The function's nodes; their attributes may be [`Reference`](super::AttributeValue::Reference)s to those of the caller's node.
    pub nodes: Vec<NodeProto>,
    /// The versions of the operators in the function; the model's versions do not apply to it.
    pub opsets: Opsets,
    /// Types of values in the function, as the file claims them.
    pub values: Vec<ValueInfo>,
}

impl Message for Function {
    type Made = Self;
    const SCHEMA: Schema = Schema {
        message: "FunctionProto",
        fields: &[
            (1, "name"),
            (4, "input"),
            (5, "output"),
            (6, "attribute"),
            (7, "node"),
            (9, "opset_import"),
            (10, "domain"),
            (11, "attribute_proto"),
            (12, "value_info"),
            (13, "overload"),
        ],
    };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        match field.place.name {
            "name" => self.name = reader.string(&field)?,
            "input" => reader.push_string(&mut self.inputs, &field)?,
            "output" => reader.push_string(&mut self.outputs, &field)?,
            "attribute" => reader.push_string(&mut self.attributes, &field)?,
            "node" => reader.push_message::<NodeProto>(&mut self.nodes, &field)?,
            "opset_import" => reader.push_message::<OpsetEntry>(&mut self.opsets.0, &field)?,
            "domain" => self.domain = standard(reader.string(&field)?),
            "attribute_proto" => reader.push_message::<AttributeFields>(&mut self.defaults, &field)?,
            "value_info" => reader.push_message::<ValueInfo>(&mut self.values, &field)?,
            "overload" => self.overload = reader.string(&field)?,
            _ => {}
        }
        Ok(())
    }

    fn finish(self, place: Place, reader: &mut Reader<'_>) -> Result<Self, Error> {
        if self.name.is_empty() {
            return Err(reader.fail(place, "a function has no name"));
        }
        self.opsets.check(place, reader)?;
        names::check(self.inputs.iter().map(String::as_str), "an input", place, reader)?;
        names::check(self.attributes.iter().map(String::as_str), "an attribute", place, reader)?;
        names::check(self.defaults.iter().map(|a| a.name.as_str()), "an attribute", place, reader)?;
        Ok(self)
    }
}
