//! Encoders of texts, images and sounds from safetensors, with the names and configurations of Hugging Face and timm, as
//! graphs of values.
//!
//! Queries, keys and values are one product, and its weights are read as if they were stored one after the other.
//! Pooling, division by the length and the normalisation of pixel bytes are part of the graph.

mod block;
mod convnext;
mod dinov3;
mod encoder;
mod ends;
mod families;
mod head;
mod images;
mod modernbert;
mod modules;
mod names;
mod open;
mod options;
mod packed;
mod packed_rows;
mod pictures;
mod pixels;
mod places;
mod pooling;
mod settings;
mod siglip;
mod spans;
mod staged;
mod swin;
mod text;
mod timm;
mod turned;
mod whisper;

#[cfg(test)]
pub(crate) use open::network;
pub(super) use open::{is_one, known, open, unknown};
pub use options::{Embedding, Pooling, Tower};
