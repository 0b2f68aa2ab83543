//! The model: the outermost message of a file.

use super::function::Function;
use super::graph::GraphProto;
use super::names;
use super::reader::{Message, NAME, Reader};
use super::wire::{Field, Place, Schema};
use crate::error::{Error, printable};

/// The content of an ONNX file.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ModelProto {
    /// The version of the format.
    pub ir_version: i64,
    /// The tool that wrote it.
    pub producer_name: String,
    /// That tool's version.
    pub producer_version: String,
    /// The model's namespace, such as `"org.example"`.
    pub domain: String,
    /// The model's own version.
    pub model_version: i64,
    /// The versions of the operators in its graph.
    pub opsets: Opsets,
    /// Free text by key, in the file's order.
    pub metadata: Vec<(String, String)>,
    /// The graph.
    pub graph: GraphProto,
    /// The functions that nodes may call; no two have domain, name and overload in common.
    pub functions: Vec<Function>,
}

/// Versions of operators by domain.
///
/// ```
/// use trefoil::onnx::File;
/// let file = File::open("tests/data/onnx/graph.onnx")?;
/// let opsets = &file.model().opsets;
/// assert_eq!((opsets.version(""), opsets.version("trefoil.test"), opsets.version("com.microsoft")), (Some(21), Some(1), None));
/// assert_eq!(opsets.iter().count(), 2);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opsets(pub(super) Vec<(String, i64)>);

impl Opsets {
    /// The version of a domain's operators, the empty domain being the standard one; `None` if the file does not say.
    pub fn version(&self, domain: &str) -> Option<i64> {
        self.iter().find(|(known, _)| *known == domain).map(|(_, version)| version)
    }

    /// Domains and versions, in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, i64)> {
        self.0.iter().map(|(domain, version)| (domain.as_str(), *version))
    }

    /// An error if there are two versions of one domain.
    pub(super) fn check(&self, place: Place, reader: &mut Reader<'_>) -> Result<(), Error> {
        let sorted = names::sorted(self.iter(), place, reader)?;
        match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1) {
            Some(pair) => {
                let domain = printable(pair[0].0, NAME);
                Err(reader.fail(place, format_args!("two versions of the operators of `{domain}`")))
            }
            None => Ok(()),
        }
    }
}

/// The domain's name in this module: the format has two names for the domain of the standard operators, here it is
/// empty.
pub(super) fn standard(domain: String) -> String {
    if domain == "ai.onnx" { String::new() } else { domain }
}

#[derive(Default)]
pub(super) struct ModelFields {
    model: ModelProto,
    graph: Option<GraphProto>,
}

impl Message for ModelFields {
    type Made = ModelProto;
    const SCHEMA: Schema = Schema {
        message: "ModelProto",
        fields: &[
            (1, "ir_version"),
            (2, "producer_name"),
            (3, "producer_version"),
            (4, "domain"),
            (5, "model_version"),
            (7, "graph"),
            (8, "opset_import"),
            (14, "metadata_props"),
            (25, "functions"),
        ],
    };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        let model = &mut self.model;
        match field.place.name {
            "ir_version" => model.ir_version = reader.int(&field)?,
            "producer_name" => model.producer_name = reader.string(&field)?,
            "producer_version" => model.producer_version = reader.string(&field)?,
            "domain" => model.domain = reader.string(&field)?,
            "model_version" => model.model_version = reader.int(&field)?,
            "graph" if self.graph.is_some() => return Err(reader.fail(field.place, "a second graph")),
            "graph" => self.graph = Some(reader.message::<GraphProto>(&field)?),
            "opset_import" => reader.push_message::<OpsetEntry>(&mut model.opsets.0, &field)?,
            "metadata_props" => reader.push_message::<KeyValue>(&mut model.metadata, &field)?,
            "functions" => reader.push_message::<Function>(&mut model.functions, &field)?,
            _ => {}
        }
        Ok(())
    }

    fn finish(self, place: Place, reader: &mut Reader<'_>) -> Result<ModelProto, Error> {
        let Self { mut model, graph: Some(graph) } = self else {
            return Err(reader.fail(place, "not an ONNX file, or cut short: there is no graph in it"));
        };
        if model.ir_version <= 0 {
            let found = model.ir_version;
            return Err(reader.fail(place, format_args!("not an ONNX file: expected an ir_version, found {found}")));
        }
        model.graph = graph;
        model.opsets.check(place, reader)?;
        check_functions(&model.functions, place, reader)?;
        Ok(model)
    }
}

/// An error if there are two functions that a node cannot tell apart.
fn check_functions(functions: &[Function], place: Place, reader: &mut Reader<'_>) -> Result<(), Error> {
    let keys = functions.iter().map(|f| (f.domain.as_str(), f.name.as_str(), f.overload.as_str()));
    let keys = names::sorted(keys, place, reader)?;
    match keys.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            let [domain, name] = [pair[0].0, pair[0].1].map(|text| printable(text, NAME));
            Err(reader.fail(place, format_args!("the function `{name}` of `{domain}` is there twice")))
        }
        None => Ok(()),
    }
}

/// A domain and a version.
#[derive(Default)]
pub(super) struct OpsetEntry {
    domain: String,
    version: i64,
}

impl Message for OpsetEntry {
    type Made = (String, i64);
    const SCHEMA: Schema = Schema { message: "OperatorSetIdProto", fields: &[(1, "domain"), (2, "version")] };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        match field.place.name {
            "domain" => self.domain = standard(reader.string(&field)?),
            "version" => self.version = reader.int(&field)?,
            _ => {}
        }
        Ok(())
    }

    fn finish(self, place: Place, reader: &mut Reader<'_>) -> Result<(String, i64), Error> {
        if self.version < 1 {
            let (domain, version) = (printable(&self.domain, NAME), self.version);
            return Err(reader.fail(place, format_args!("expected a version of `{domain}` from 1, found {version}")));
        }
        Ok((self.domain, self.version))
    }
}

/// A key and a text.
#[derive(Default)]
pub(super) struct KeyValue {
    key: String,
    value: String,
}

impl Message for KeyValue {
    type Made = (String, String);
    const SCHEMA: Schema = Schema { message: "StringStringEntryProto", fields: &[(1, "key"), (2, "value")] };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        match field.place.name {
            "key" => self.key = reader.string(&field)?,
            "value" => self.value = reader.string(&field)?,
            _ => {}
        }
        Ok(())
    }

    fn finish(self, _: Place, _: &mut Reader<'_>) -> Result<(String, String), Error> {
        Ok((self.key, self.value))
    }
}
