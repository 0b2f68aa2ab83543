//! The CUDA kernels: embedded PTX, and launches as pure descriptions.

mod add;
mod conv2d_depthwise;
mod conv2d_fprop;
mod emit;
mod entries;
mod global_avg_pool;
mod implicit_gemm;
mod launch;
mod linear;
mod normalize;
mod pool2d;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
