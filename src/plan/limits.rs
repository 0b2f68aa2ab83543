//! The attributes of the hardware that a plan depends on, as plain data, so that a plan for another machine can be made
//! anywhere.

use std::fmt;

use crate::tensor::Dtype;

/// The kernels that a device runs.
///
/// ```
/// use trefoil::{Dtype, plan::{Family, Limits}};
/// assert_eq!([Limits::a100().family, Limits::h200().family], [Family::Sm80; 2]); // the sm90 kernels come on top
/// assert_eq!((Family::Sm80.dtype(), Family::Cpu.dtype()), (Dtype::F16, Dtype::F32));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Host code: f32 activations.
    Cpu,
    /// Kernels with mma.sync and cp.async: f16 activations, compute capability 8.0 and up.
    Sm80,
}

/// The hardware that a plan is made for.
///
/// ```
/// use trefoil::plan::Limits;
/// let l40 = Limits::gpu("NVIDIA L40", [8, 9], 142, 101_376);
/// assert_eq!(l40.to_string(), "NVIDIA L40 (sm_89, 142 SMs)");
/// assert!(!l40.has_sm90_kernels() && Limits::h200().has_sm90_kernels());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// The device's name.
    pub name: String,
    /// The family of kernels that the device runs.
    pub family: Family,
    /// Major and minor compute capability; zeros for a CPU.
    pub compute_capability: [u32; 2],
    /// The number of streaming multiprocessors; for a CPU, of compute threads.
    pub units: usize,
    /// Bytes of shared memory that one block may ask for.
    pub shared_bytes: usize,
}

impl Limits {
    /// A CPU with `threads` compute threads.
    pub fn cpu(threads: usize) -> Self {
        Self { name: "CPU".into(), family: Family::Cpu, compute_capability: [0, 0], units: threads, shared_bytes: 0 }
    }

    /// An NVIDIA GPU by its attributes.
    pub fn gpu(name: &str, compute_capability: [u32; 2], units: usize, shared_bytes: usize) -> Self {
        Self { name: name.into(), family: Family::Sm80, compute_capability, units, shared_bytes }
    }

    /// Whether the device also runs the sm90 kernels, whose instructions only compute capability 9.0 has.
    pub fn has_sm90_kernels(&self) -> bool {
        self.family == Family::Sm80 && self.compute_capability == [9, 0]
    }

    /// The most blocks of a cluster that the device is sure to run. A part of a GPU may have no group of 16 multiprocessors.
    pub(crate) const fn most_cluster_blocks(&self) -> usize {
        if self.units >= WHOLE { 16 } else { 8 }
    }

    /// NVIDIA A100 with 80 GB, on SXM4.
    pub fn a100() -> Self {
        Self::gpu("NVIDIA A100-SXM4-80GB", [8, 0], 108, 166_912)
    }

    /// NVIDIA H100 with 80 GB, on SXM5.
    pub fn h100() -> Self {
        Self::gpu("NVIDIA H100 80GB HBM3", [9, 0], 132, 232_448)
    }

    /// NVIDIA H100 PCIe.
    pub fn h100_pcie() -> Self {
        Self::gpu("NVIDIA H100 PCIe", [9, 0], 114, 232_448)
    }

    /// NVIDIA H200.
    pub fn h200() -> Self {
        Self::gpu("NVIDIA H200", [9, 0], 132, 232_448)
    }

    /// NVIDIA B200.
    pub fn b200() -> Self {
        Self::gpu("NVIDIA B200", [10, 0], 148, 232_448)
    }

    /// NVIDIA L4.
    pub fn l4() -> Self {
        Self::gpu("NVIDIA L4", [8, 9], 58, 101_376)
    }

    /// NVIDIA L40S.
    pub fn l40s() -> Self {
        Self::gpu("NVIDIA L40S", [8, 9], 142, 101_376)
    }

    /// NVIDIA GeForce RTX 4090.
    pub fn rtx4090() -> Self {
        Self::gpu("NVIDIA GeForce RTX 4090", [8, 9], 128, 101_376)
    }

    /// NVIDIA GeForce RTX 5090.
    pub fn rtx5090() -> Self {
        Self::gpu("NVIDIA GeForce RTX 5090", [12, 0], 170, 101_376)
    }
}

impl Family {
    /// Element type of the activations.
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::Cpu => Dtype::F32,
            Self::Sm80 => Dtype::F16,
        }
    }

    /// Channels of activations of this type are stored in multiples of this many: on a GPU, of 16 bytes.
    pub(crate) const fn channels_of(self, dtype: Dtype) -> usize {
        match (self, dtype) {
            (Self::Sm80, Dtype::U8 | Dtype::I8) => 16,
            _ => self.channel_align(),
        }
    }

    /// Channels of floats are stored in multiples of this many.
    pub(crate) const fn channel_align(self) -> usize {
        match self {
            Self::Cpu => 1,
            Self::Sm80 => 8,
        }
    }
}

/// The least number of multiprocessors of a whole GPU, which has groups of 16.
const WHOLE: usize = 128;

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family {
            Family::Cpu => write!(f, "{} ({} threads)", self.name, self.units),
            Family::Sm80 => {
                let [major, minor] = self.compute_capability;
                write!(f, "{} (sm_{major}{minor}, {} SMs)", self.name, self.units)
            }
        }
    }
}
