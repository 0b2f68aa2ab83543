//! The options of an encoder.

use crate::error::Error;
use crate::onnx::Sizes;

/// The options of an encoder: its output, and the sizes at which it is opened. The files in the model's folder give the
/// defaults.
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
    /// The largest numbers of tokens and rows of a record.
    pub(super) packed: Option<[usize; 2]>,
}

/// The vector that stands for all tokens.
///
/// ```
/// use trefoil::model::Pooling;
/// assert_ne!(Pooling::Mean, Pooling::Tokens);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The mean of the tokens that the mask shows; for an image, the mean of its patches.
    Mean,
    /// The first token.
    Class,
    /// The last token that the mask shows; for CLIP's texts, the first token that ends a text. An image has none.
    Last,
    /// No pooling: every token has a vector of its own.
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
    /// The part that reads images.
    Images,
    /// The part that reads texts.
    Texts,
}

impl Embedding {
    /// The defaults: the longest texts that the model takes; images of the size that the model was trained with; the
    /// pooling in the files of sentence-transformers or, without them, the mean for texts and the first token for
    /// images; and for a model of images and texts, the part that reads images.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of tokens. Shorter texts are padded behind their end, and the mask excludes the padding.
    #[must_use]
    pub const fn sequence(self, tokens: usize) -> Self {
        Self { sequence: Some(tokens), ..self }
    }

    /// Sets the size of images, a multiple of the patch size in each direction. Position embeddings are interpolated.
    #[must_use]
    pub const fn image(self, height: usize, width: usize) -> Self {
        Self { image: Some([height, width]), ..self }
    }

    /// Sets how the vectors of all tokens become one.
    #[must_use]
    pub const fn pooling(self, pooling: Pooling) -> Self {
        Self { pooling: Some(pooling), ..self }
    }

    /// Sets whether vectors are divided by their length.
    #[must_use]
    pub const fn normalized(self, normalized: bool) -> Self {
        Self { normalized: Some(normalized), ..self }
    }

    /// Selects the part of a model of images and texts.
    #[must_use]
    pub const fn tower(self, tower: Tower) -> Self {
        Self { tower: Some(tower), ..self }
    }

    /// Sets the size of a record for texts of different lengths that lie end to end: up to `tokens` tokens of up to
    /// `rows` texts, each of at most [`sequence`](Self::sequence) tokens. Nothing is padded, and a text's vector does
    /// not depend on the others.
    ///
    /// The inputs are `input_ids` `[tokens]`, `starts` `[rows + 1]`, and for BERT `token_type_ids` `[tokens]`, all i64.
    /// `starts` has the sums of the texts' lengths: text i lies from `starts[i]` to `starts[i + 1]`, and missing texts
    /// are empty. The output is `embedding` `[rows, values]`, in which rows of empty texts have no meaning, or `tokens`
    /// `[tokens, values]`. [`Pack`](crate::Pack) fills such records. The free dimensions are `tokens`, `rows` and
    /// `longest`.
    ///
    /// ```no_run
    /// use trefoil::model::{Embedding, Model};
    /// let model = Model::open_encoder("all-MiniLM-L6-v2", &Embedding::new().sequence(256).packed(4096, 128))?;
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    #[must_use]
    pub const fn packed(self, tokens: usize, rows: usize) -> Self {
        Self { packed: Some([tokens, rows]), ..self }
    }

    /// The options with these sizes: `sequence`, or `height` and `width`, or `tokens` and `rows`.
    pub(in crate::model) fn of_sizes(sizes: &Sizes) -> Result<Self, Error> {
        let known = ["sequence", "height", "width", "tokens", "rows"];
        if let Some(other) = sizes.names().find(|name| !known.contains(name)) {
            return Err(Error::option(
                "sizes",
                format_args!("one of `{other}`"),
                "of `sequence`, `height` and `width`, or `tokens` and `rows`",
            ));
        }
        let [sequence, height, width, tokens, rows] = known.map(|name| sizes.get(name));
        let both = |pair: [Option<usize>; 2], names: &str| match pair {
            [Some(a), Some(b)] => Ok(Some([a, b])),
            [None, None] => Ok(None),
            _ => Err(Error::option("sizes", format_args!("one of {names}"), "both")),
        };
        let image = both([height, width], "`height` and `width`")?;
        let packed = both([tokens, rows], "`tokens` and `rows`")?;
        Ok(Self { sequence, image, packed, ..Self::default() })
    }
}
