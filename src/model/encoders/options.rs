//! What is asked of an encoder where its files leave a choice.

use crate::error::Error;
use crate::onnx::Sizes;

/// What an encoder is to give, and at which sizes it is opened. What is not said here is as the model's folder says.
///
/// ```no_run
/// use trefoil::model::{Embedding, Model, Pooling};
/// let model = Model::open_encoder("all-MiniLM-L6-v2", &Embedding::new().sequence(128))?;
/// let tokens = Model::open_encoder("bert-base-uncased", &Embedding::new().pooling(Pooling::Tokens))?;
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Embedding {
    pub(super) sequence: Option<usize>,
    pub(super) image: Option<[usize; 2]>,
    pub(super) pooling: Option<Pooling>,
    pub(super) normalized: Option<bool>,
    pub(super) tower: Option<Tower>,
}

/// Which vector stands for all tokens.
///
/// ```
/// use trefoil::model::Pooling;
/// assert_ne!(Pooling::Mean, Pooling::Tokens);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The mean of the tokens that the mask shows; of an image the mean of its patches.
    Mean,
    /// The first token.
    Class,
    /// The last token that the mask shows; of CLIP's texts the first token that ends a text. An image has none.
    Last,
    /// None: every token has a vector of its own.
    Tokens,
}

/// A part of a model of images and texts.
///
/// ```no_run
/// use trefoil::model::{Embedding, Model, Tower};
/// let [texts, images] = [Tower::Texts, Tower::Images]
///     .map(|tower| Model::open_encoder("clip-vit-base-patch32", &Embedding::new().tower(tower).normalized(true)));
/// # texts?; images?; Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tower {
    /// Which reads images.
    Images,
    /// Which reads texts.
    Texts,
}

impl Embedding {
    /// As the folder says: the longest texts, images of the size that the model was trained with, the pooling that is told
    /// beside the model, or the mean of texts and the first token of images, and of two towers that of images.
    pub fn new() -> Self {
        Self::default()
    }

    /// Texts of so many tokens; shorter ones are padded behind their end, and the mask says so.
    #[must_use]
    pub const fn sequence(self, tokens: usize) -> Self {
        Self { sequence: Some(tokens), ..self }
    }

    /// Images of this size, a multiple of the patches' in each direction. Position embeddings are interpolated.
    #[must_use]
    pub const fn image(self, height: usize, width: usize) -> Self {
        Self { image: Some([height, width]), ..self }
    }

    /// What stands for all tokens.
    #[must_use]
    pub const fn pooling(self, pooling: Pooling) -> Self {
        Self { pooling: Some(pooling), ..self }
    }

    /// Whether vectors are divided by their length.
    #[must_use]
    pub const fn normalized(self, normalized: bool) -> Self {
        Self { normalized: Some(normalized), ..self }
    }

    /// Which part of a model that has two.
    #[must_use]
    pub const fn tower(self, tower: Tower) -> Self {
        Self { tower: Some(tower), ..self }
    }

    /// With the sizes of `sequence`, or of `height` and `width`.
    pub(in crate::model) fn of_sizes(sizes: &Sizes) -> Result<Self, Error> {
        let known = ["sequence", "height", "width"];
        if let Some(other) = sizes.names().find(|name| !known.contains(name)) {
            return Err(Error::option(
                "sizes",
                format_args!("one of `{other}`"),
                "of `sequence`, or `height` and `width`",
            ));
        }
        let [sequence, height, width] = known.map(|name| sizes.get(name));
        let image = match (height, width) {
            (Some(height), Some(width)) => Some([height, width]),
            (None, None) => None,
            _ => return Err(Error::option("sizes", "one of `height` and `width`", "both")),
        };
        Ok(Self { sequence, image, ..Self::default() })
    }
}
