//! Encoders of texts, images and sounds from safetensors, with the names and configurations of Hugging Face and timm, as
//! graphs of values.
//!
//! Queries, keys and values are one product, whose weights are read as if they lay one behind the other. Pooling, and
//! division by the length, are part of the graph. Bytes of pixels are normalised in it.

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
pub(super) use open::{is_one, known, open};
pub use options::{Embedding, Pooling, Tower};
