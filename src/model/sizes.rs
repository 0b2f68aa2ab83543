//! A model at other sizes of its free dimensions.

use super::padding::{padded, with_layers};
use super::{Model, Network};
use crate::error::Error;
use crate::tensor::{Dims, Packing, Size};

impl Model {
    /// The model at other sizes of its free dimensions. Its engines have these sizes unless the builder sets
    /// [others](crate::EngineBuilder::sizes). The number of rows in `size` is ignored.
    ///
    /// The free dimensions of a network of images are `height` and `width` if it is from a folder with safetensors,
    /// those that an ONNX file leaves free, or those of [`Model::of_images`]. Preprocessing, shapes and parts of the
    /// returned model are for the new size.
    ///
    /// ```
    /// use trefoil::{Size, model::Model};
    /// let model = Model::open("weights/efficientnet-lite0")?;
    /// let small = model.at(&Size::new(1).dim("height", 160).dim("width", 192))?;
    /// assert_eq!(small.preprocessing()?.input.to_string(), "160x192x3");
    /// assert_eq!(small.output()?, model.output()?);
    /// assert!(model.at(&Size::new(1).dim("depth", 3)).unwrap_err().to_string().contains("`height`, `width`"));
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] for a dimension that the model does not have, and for sizes that it cannot have, with the reason.
    pub fn at(&self, size: &Size) -> Result<Self, Error> {
        check_dims(&self.dims(), size)?;
        Ok(self.at_each(std::slice::from_ref(size.dims()))?.remove(0))
    }

    /// The packed size of a model whose rows lie end to end in one record, as with
    /// [`Embedding::packed`](super::Embedding::packed); `None` for any other model.
    ///
    /// ```no_run
    /// use trefoil::{Packing, model::{Embedding, Model}};
    /// let model = Model::open_encoder("all-MiniLM-L6-v2", &Embedding::new().sequence(256).packed(4096, 128))?;
    /// assert_eq!(model.packing(), Some(Packing { tokens: 4096, rows: 128, longest: 256 }));
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn packing(&self) -> Option<Packing> {
        Packing::of(&self.dims())
    }

    /// The sizes of the free dimensions.
    pub(crate) fn dims(&self) -> Dims {
        match self.network() {
            Network::Values(values) => values.dims().clone(),
            Network::Images(images) => images.dims().clone(),
        }
    }

    /// The model at each of these sizes of its free dimensions, which differ; all with the same weights. Sizes of other
    /// dimensions are ignored.
    ///
    /// # Errors
    /// [`Error::Option`] with all sizes that are impossible for the model, and for an input without declared padding,
    /// or without an axis as long as the dimension.
    pub(crate) fn at_each(&self, all: &[Dims]) -> Result<Vec<Self>, Error> {
        let mut weights = self.weights().clone();
        let networks: Vec<Network> = match self.network() {
            Network::Images(images) => at_all(all, |dims| {
                let (images, more) = images.at(dims, &weights)?;
                let found = images.shaped().output.channels;
                if found != self.classes() {
                    let what = format!("{found} classes where the model has {}", self.classes());
                    return Err(Error::graph(self.name(), what));
                }
                weights = more;
                Ok(Network::Images(images))
            })?,
            Network::Values(values) => {
                let each = padded(values, at_all(all, |dims| values.at(dims))?)?;
                let mut others = each.iter().filter(|other| other.dims() != values.dims());
                weights = others.try_fold(weights, with_layers)?;
                each.into_iter().map(|values| Network::Values(values.into())).collect()
            }
        };
        Ok(networks.into_iter().map(|network| Self { network, weights: weights.clone(), ..self.clone() }).collect())
    }
}

/// Checks that the model has all dimensions of a size.
///
/// # Errors
/// [`Error::Option`] with the model's dimensions.
pub(crate) fn check_dims(own: &Dims, size: &Size) -> Result<(), Error> {
    let unknown: Vec<&str> = size.dims().keys().map(|name| &**name).filter(|name| !own.contains_key(*name)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = own.keys().map(|name| format!("`{name}`")).collect();
    let dims = match &names[..] {
        [] => {
            "no sizes, because the model is from a file without free dimensions, or from one graph built in code: give `Model::of_images` or \
               `Model::of_sizes` the graph for each size"
                .into()
        }
        names => names.join(", "),
    };
    Err(Error::option("sizes", unknown.join(", "), format!("sizes of the model's free dimensions: {dims}")))
}

/// The results of `at` for all of these sizes.
///
/// # Errors
/// [`Error::Option`] with all sizes for which `at` returns an error.
fn at_all<T>(all: &[Dims], mut at: impl FnMut(&Dims) -> Result<T, Error>) -> Result<Vec<T>, Error> {
    let (mut given, mut refused, mut why) = (Vec::new(), Vec::new(), Vec::new());
    for dims in all {
        match at(dims) {
            Ok(one) => given.push(one),
            Err(error) => {
                let size = dims.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",");
                why.push(format!("at {size}: {error}"));
                refused.push(size);
            }
        }
    }
    match refused.is_empty() {
        true => Ok(given),
        false => {
            Err(Error::option("sizes", refused.join("; "), format!("sizes that the model has; {}", why.join("; "))))
        }
    }
}
