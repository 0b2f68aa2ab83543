//! Parts that tests of arithmetic share: each operation by plain loops, tolerances, and problems that run on every
//! device.
#![allow(dead_code, reason = "each test binary uses a part")]

#[cfg(feature = "cuda")]
pub mod attention;
pub mod beyond_f16;
pub mod byte_rules;
#[cfg(feature = "cuda")]
pub mod conv_s8;
#[cfg(feature = "cuda")]
pub mod convolution;
pub mod embedding;
pub mod encoder;
#[cfg(feature = "cuda")]
pub mod halves;
pub mod image_sizes;
pub mod loops;
#[cfg(feature = "cuda")]
pub mod loops_on_gpu;
pub mod nodes;
pub mod operations;
#[cfg(feature = "cuda")]
pub mod packed_attention;
pub mod photos;
pub mod precision;
pub mod problem;
#[cfg(feature = "cuda")]
pub mod product;
pub mod quantized;
pub mod random;
pub mod records;
#[cfg(feature = "cuda")]
pub mod recurrent;
pub mod reference;
#[cfg(feature = "cuda")]
pub mod row_norm;
#[cfg(feature = "cuda")]
pub mod s8_ends;
pub mod sizes;
#[cfg(feature = "cuda")]
pub mod squeeze_excite;
pub mod states;
pub mod tolerance;
pub mod transformer;
pub mod values;
pub mod whole_numbers;
