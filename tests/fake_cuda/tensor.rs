//! Tensor maps: checked as the driver checks them; the encoded map is only the address, which a launch looks up.

use crate::driver::Driver;
use crate::ffi::*;

/// Type, interleave, swizzle and fill of the usual maps of trefoil: halves, none, 128 bytes, zeros.
pub const HALVES: [u32; 4] = [6, 0, 3, 0];
/// Maps of halves with a swizzle of 64 bytes, of 32 bytes and without one, each with the most bytes of a box's row.
pub const HALVES_OTHERWISE: [([u32; 4], u32); 3] = [([6, 0, 2, 0], 64), ([6, 0, 1, 0], 32), ([6, 0, 0, 0], 128)];

pub struct Tensor<'a> {
    address: usize,
    pub dims: &'a [u64],
    strides: &'a [u64],
    pub steps: &'a [u32],
}

impl Tensor<'_> {
    /// # Safety
    /// There are `rank` dimensions and steps, and one stride less.
    pub unsafe fn read(address: usize, rank: u32, dims: *const u64, strides: *const u64, steps: *const u32) -> Self {
        let rank = rank as usize;
        // SAFETY: by the caller.
        unsafe {
            Self {
                address,
                dims: std::slice::from_raw_parts(dims, rank),
                strides: std::slice::from_raw_parts(strides, rank - 1),
                steps: std::slice::from_raw_parts(steps, rank),
            }
        }
    }

    pub fn map(&self) -> TensorMap {
        TensorMap(std::array::from_fn(|i| if i == 0 { self.address as u64 } else { 0 }))
    }
}

impl Driver {
    /// Checks that the tensor lies in one block of device memory; returns the block's name.
    pub fn tensor(&mut self, tensor: &Tensor<'_>) -> Result<String, Code> {
        let Tensor { address, dims, strides, steps } = tensor;
        let strided = strides.iter().all(|stride| stride.is_multiple_of(16) && *stride < 1 << 40);
        let counted = dims.iter().all(|dim| (1..=1 << 32).contains(dim)) && steps.iter().all(|s| (1..=8).contains(s));
        if !address.is_multiple_of(16) || !strided || !counted {
            return self.refuse(format!("a tensor map of {dims:?} by {strides:?}, steps {steps:?}"), INVALID_VALUE);
        }
        let bytes = 2 * dims.iter().product::<u64>() as usize;
        let found = self.device.find(*address, bytes);
        self.valid(found)
    }
}
