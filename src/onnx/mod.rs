//! ONNX files as plain data: the graph, its functions, and where each tensor lies.
//!
//! A file comes from outside and is not trusted. This module reads its Protobuf at positions of the file, without a
//! copy of its weights: it keeps names, shapes, attributes, and the place of each tensor's bytes. Every length is
//! checked against the message around it, messages nest up to a limit, and all memory that a file asks for comes out of
//! a budget. This module does not check the meaning of the graph, such as whether the values that a node reads exist;
//! the importer does.
//!
//! ```
//! use trefoil::onnx::{AttributeValue, File};
//! let file = File::open("tests/data/onnx/graph.onnx")?;
//! let model = file.model();
//! assert_eq!((model.ir_version, model.opsets.version("")), (10, Some(21)));
//! let gemm = &model.graph.nodes[0];
//! assert_eq!((gemm.op_type.as_str(), gemm.attribute("transB")), ("Gemm", Some(&AttributeValue::Int(1))));
//! let weight = &model.graph.initializers[0];
//! let mut elements = vec![0; weight.bytes()];
//! file.read(weight, &mut elements)?; // little-endian, as `weight.dtype` says
//! assert_eq!(elements[..4], 0.5_f32.to_le_bytes());
//! # Ok::<(), trefoil::Error>(())
//! ```
//!
//! The standard operators have the domain `ai.onnx` or the empty domain; this module always gives the empty one.
//! Documentation texts, quantisation annotations, training graphs and device configurations are not kept. Sparse
//! tensors are refused.

mod attribute;
mod data_type;
mod elements;
mod external;
mod file;
mod function;
mod graph;
mod import;
mod model;
mod names;
mod node;
mod operators;
mod reader;
mod tensor;
mod value;
mod wire;

pub use crate::error::Problem;
pub use attribute::{Attribute, AttributeValue};
pub use data_type::DataType;
pub use file::{File, MEMORY_BYTES};
pub use function::Function;
pub use graph::GraphProto;
pub use import::Sizes;
pub(crate) use import::dtype_of;
pub use model::{ModelProto, Opsets};
pub use node::NodeProto;
pub use tensor::Tensor;
pub use value::{Dim, ValueInfo, ValueType};
