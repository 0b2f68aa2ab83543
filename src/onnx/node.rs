//! One operator of a graph.

use super::attribute::{Attribute, AttributeFields, AttributeValue};
use super::model::standard;
use super::names;
use super::reader::{Message, NAME, Reader};
use super::wire::{Field, Place, Schema};
use crate::error::{Error, printable};

/// A node: an operator or function, what it reads and writes, and its attributes.
///
/// ```
/// use trefoil::onnx::{AttributeValue, File};
/// let file = File::open("tests/data/onnx/graph.onnx")?;
/// let clip = file.model().graph.nodes.iter().find(|node| node.op_type == "Clip").expect("it is in the file");
/// assert_eq!(clip.inputs, ["gemm", "", "six"]); // without a lower bound
/// assert_eq!(clip.attribute("min"), None);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct NodeProto {
    /// The node's name; often empty.
    pub name: String,
    /// The operator; never empty.
    pub op_type: String,
    /// The operator's domain; empty for the standard one.
    pub domain: String,
    /// The name of the overload, if there are several functions of one name, since version 10 of the format; empty
    /// otherwise.
    pub overload: String,
    /// The values that it reads; empty names are inputs left out.
    pub inputs: Vec<String>,
    /// The values that it writes; empty names are outputs left out.
    pub outputs: Vec<String>,
    /// The node's attributes, each name once.
    pub attributes: Vec<Attribute>,
}

impl NodeProto {
    /// The value of an attribute; `None` if the node does not have it.
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|attribute| &attribute.value)
    }
}

impl Message for NodeProto {
    type Made = Self;
    const SCHEMA: Schema = Schema {
        message: "NodeProto",
        fields: &[
            (1, "input"),
            (2, "output"),
            (3, "name"),
            (4, "op_type"),
            (5, "attribute"),
            (7, "domain"),
            (8, "overload"),
        ],
    };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        match field.place.name {
            "input" => reader.push_string(&mut self.inputs, &field)?,
            "output" => reader.push_string(&mut self.outputs, &field)?,
            "name" => self.name = reader.string(&field)?,
            "op_type" => self.op_type = reader.string(&field)?,
            "attribute" => reader.push_message::<AttributeFields>(&mut self.attributes, &field)?,
            "domain" => self.domain = standard(reader.string(&field)?),
            "overload" => self.overload = reader.string(&field)?,
            _ => {}
        }
        Ok(())
    }

    fn finish(self, place: Place, reader: &mut Reader<'_>) -> Result<Self, Error> {
        if self.op_type.is_empty() {
            return Err(reader.fail(place, format_args!("node `{}` has no op_type", printable(&self.name, NAME))));
        }
        names::check(self.attributes.iter().map(|a| a.name.as_str()), "an attribute", place, reader)?;
        Ok(self)
    }
}
