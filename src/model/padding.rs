//! The padding of rows that are shorter than a size, and the weights of a model with several sizes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::values::{LayerWeights, Values};
use super::weights::{Weights, filter_of};
use super::{Model, Network};
use crate::error::Error;
use crate::graph::{Number, Tensor, ValueType};
use crate::loops::bits;
use crate::tensor::{Dtype, Padding, RowPort};

/// An input that may be shorter than a size along a free dimension.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    /// The free dimension.
    dim: Arc<str>,
    /// The name of the input.
    pub(super) port: Arc<str>,
    /// The bytes of the element that fills up the row.
    elem: Arc<[u8]>,
}

impl Model {
    /// Declares that rows may be shorter than an engine's size along the free dimension `dim`, and returns the model
    /// with this declaration. `inputs` names every input that has the dimension, with the number that fills up shorter
    /// values; [`Batch::write_port`](crate::Batch::write_port) writes this padding. The caller guarantees that the
    /// model ignores padded elements, for example by a mask. A row then takes the smallest size that holds it; without
    /// the declaration, dimensions match exactly.
    ///
    /// ```no_run
    /// use trefoil::{Engine, Size, model::Model, onnx::Sizes};
    /// let model = Model::open_at("bert.onnx", &Sizes::new().dim("sequence", 128))?;
    /// let model = model.padded("sequence", &[("input_ids", 0.0), ("attention_mask", 0.0)])?;
    /// let sizes = [Size::new(1).dim("sequence", 64), Size::new(8).dim("sequence", 128)];
    /// let engine = Engine::builder(&model).sizes(&sizes).build()?;
    /// let mut batch = engine.acquire_for(&Size::new(1).dim("sequence", 3))?; // the size of 64
    /// batch.write_port(0, "input_ids", &[101_i64, 2003, 102])?;
    /// batch.write_port(0, "attention_mask", &[1_i64, 1, 1])?;
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] for a dimension or an input that the model does not have, and for a number that is none of the
    /// input's type; [`Error::Unsupported`] for a network of images.
    pub fn padded(&self, dim: &str, inputs: &[(&str, f64)]) -> Result<Self, Error> {
        let Network::Values(values) = self.network() else {
            return Err(Error::Unsupported {
                what: format!("`{}`, a network of images, on padded rows", self.name()),
                instead: "resize images to its input".into(),
            });
        };
        if !values.dims().contains_key(dim) {
            let known: Vec<String> = values.dims().keys().map(|name| format!("`{name}`")).collect();
            let expected = format!("one of the model's free dimensions: {}", known.join(", "));
            return Err(Error::option("padded", format!("`{dim}`"), expected));
        }
        let declared = inputs.iter().map(|&(name, number)| {
            let port = values.input().port(name)?;
            Ok(Declared { dim: dim.into(), port: port.name.clone(), elem: elem(port, number)? })
        });
        let declared = declared.collect::<Result<Vec<_>, Error>>()?;
        let mut values = Values::clone(values);
        values.padding.extend(declared);
        Ok(self.with_values(values.into(), self.weights().clone()))
    }

    /// The dimensions along which rows may be padded.
    pub(crate) fn neutral_dims(&self) -> BTreeSet<String> {
        match self.network() {
            Network::Values(values) => values.padding.iter().map(|declared| declared.dim.to_string()).collect(),
            Network::Images(_) => BTreeSet::new(),
        }
    }
}

/// The weights with those that the layers of a network's graphs need in addition; the same weights if there are none.
pub(super) fn with_layers(weights: Arc<Weights>, values: &Values) -> Result<Arc<Weights>, Error> {
    values.check(&weights)?;
    let LayerWeights { mut computed, mut matrices } = values.layer_weights()?;
    // Graphs that are cut from a model need no constants in addition, and graphs of other sizes only a few.
    computed.retain(|name, _| weights.dims(name).is_none());
    matrices.retain(|(name, sums_first)| weights.dims(&filter_of(name, *sums_first)).is_none());
    match computed.is_empty() && matrices.is_empty() {
        true => Ok(weights),
        false => Ok(weights.with(computed)?.with_filters(&matrices)?.into()),
    }
}

/// The networks `each`, which are `of` at several sizes, with the declared padding of rows.
pub(super) fn padded(of: &Values, each: Vec<Values>) -> Result<Vec<Values>, Error> {
    let mut padding = Vec::new();
    for declared in &of.padding {
        let port = of.input().ports().iter().position(|port| port.name == declared.port).expect("it was looked for");
        let axis = axis_of(declared, port, of, &each)?;
        padding.push((port, Padding { axis, elem: declared.elem.clone() }));
    }
    each.iter().try_for_each(|values| all_told(of, values, &padding))?;
    let with_padding = |values: Values| {
        let input = values.input().padded(&padding);
        values.with_input(input)
    };
    Ok(each.into_iter().map(with_padding).collect())
}

/// The only axis of a port that is as long as the dimension at every size.
fn axis_of(Declared { dim, .. }: &Declared, port: usize, of: &Values, each: &[Values]) -> Result<usize, Error> {
    let input = &of.input().ports()[port];
    let is_it = |&axis: &usize| {
        let has = |values: &Values| values.input().ports()[port].dims[axis] == values.dims()[&**dim];
        each.iter().chain([of]).all(has)
    };
    match (0..input.dims.len()).filter(is_it).collect::<Vec<_>>()[..] {
        [axis] => Ok(axis),
        [] => Err(Error::option("padded", input, format!("an input with an axis of `{dim}`"))),
        _ => {
            let expected = format!("an input of which one axis is as long as `{dim}`: add a size of another length");
            Err(Error::option("padded", input, expected))
        }
    }
}

/// Checks that each input that is shorter along a dimension with padding has a declared padding.
fn all_told(of: &Values, values: &Values, padding: &[(usize, Padding)]) -> Result<(), Error> {
    let neutral = |name: &str| of.padding.iter().any(|declared| &*declared.dim == name);
    let mut differing = of.dims().iter().filter(|(name, size)| values.dims()[*name] != **size);
    if !differing.all(|(name, _)| neutral(name)) {
        return Ok(()); // another dimension may be the reason
    }
    for (index, (one, other)) in of.input().ports().iter().zip(values.input().ports()).enumerate() {
        let told = |axis| padding.iter().any(|(port, padding)| *port == index && padding.axis == axis);
        if (0..one.dims.len()).any(|axis| one.dims[axis] != other.dims[axis] && !told(axis)) {
            let expected = format!("the number that `{}` is padded with, too", one.name);
            return Err(Error::option("padded", "without an input that has the dimension", expected));
        }
    }
    Ok(())
}

/// A number as an element of a port.
fn elem(port: &RowPort, number: f64) -> Result<Arc<[u8]>, Error> {
    let dtype = port.dtype;
    let bytes = &bits(dtype, Number::Float(number)).to_le_bytes()[..dtype.bytes()];
    let found = Tensor::from_bytes(ValueType::new(dtype, &[]), bytes).to_f64s()[0];
    let is_bool = dtype != Dtype::Bool || [0.0, 1.0].contains(&number);
    if !is_bool || (!dtype.is_float() && found != number) {
        return Err(Error::option("padded", number, format!("a number of {dtype}, for {port}")));
    }
    Ok(bytes.into())
}
