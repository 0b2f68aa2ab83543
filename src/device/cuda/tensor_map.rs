//! Tensor maps, which describe tensors to the tensor memory accelerator (TMA) of compute capability 9.0: as plain data,
//! and encoded by the driver.

use cudarc::driver::sys;

use super::Cuda;
use super::driver::cu;
use crate::error::Error;

/// A tensor of halves and the box of it that one copy takes. The innermost dimension comes first, and there are no gaps
/// except where there are pitches. Unless the map says otherwise, boxes are swizzled in shared memory in rows of 128
/// bytes, or of 64 or 32 if they are no wider. Elements outside the tensor read as zeros and are not written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TensorMap {
    /// Boxes of a matrix whose rows are `pitch` halves apart.
    Matrix { address: u64, dims: [u64; 2], pitch: u64, box_dims: [u32; 2] },
    /// Boxes of three dimensions.
    Blocks { address: u64, dims: [u64; 3], box_dims: [u32; 3] },
    /// Boxes of images {C, W, H, N} whose pixels are `pitch` halves apart.
    Images { address: u64, dims: [u64; 4], pitch: u64, box_dims: [u32; 4], swizzle: Swizzle },
    /// Boxes of four dimensions. All dimensions but the innermost have a pitch, in halves.
    Strided { address: u64, dims: [u64; 4], pitches: [u64; 3], box_dims: [u32; 4], swizzle: Swizzle },
    /// Columns of `pixels` windows of an image {C, W, H, N}, with `channels` of each.
    Windows(Windows),
}

/// The order of a box in shared memory: each row of this many bytes has its parts of 16 bytes in another order, or all
/// are in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Swizzle {
    None,
    Rows32,
    Rows64,
    Rows128,
}

impl Swizzle {
    /// The swizzle of boxes that are `halves` halves wide.
    pub(crate) fn of_width(halves: u32) -> Self {
        match halves {
            ..=16 => Self::Rows32,
            17..=32 => Self::Rows64,
            _ => Self::Rows128,
        }
    }

    fn raw(self) -> sys::CUtensorMapSwizzle {
        match self {
            Self::None => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            Self::Rows32 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            Self::Rows64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            Self::Rows128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        }
    }
}

/// The values of [`TensorMap::Windows`]; arrays of two values are of W and H.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Windows {
    pub(crate) address: u64,
    pub(crate) dims: [u64; 4],
    /// The first corner of the area in which a window's first pixel may lie, relative to the image's first pixel.
    pub(crate) lower: [i32; 2],
    /// The last corner of that area, relative to the image's last pixel.
    pub(crate) upper: [i32; 2],
    pub(crate) strides: [u32; 2],
    pub(crate) channels: u32,
    pub(crate) pixels: u32,
}

/// The size of an encoded map in bytes.
pub(crate) const TENSOR_MAP_BYTES: usize = 128;

impl Cuda {
    /// Encodes `map` for a kernel's arguments. The encoded map contains the address of the tensor.
    pub fn encode(&self, map: &TensorMap) -> Result<[u8; TENSOR_MAP_BYTES], Error> {
        let _entered = self.enter()?;
        let mut raw = sys::CUtensorMap { opaque: [0; 16] };
        let encoded = match map {
            TensorMap::Matrix { address, dims, pitch, box_dims } => {
                let swizzle = Swizzle::of_width(box_dims[0]);
                self.encode_tiled(&mut raw, swizzle, *address, dims, [2 * pitch; 2], box_dims)
            }
            TensorMap::Blocks { address, dims, box_dims } => {
                let swizzle = Swizzle::of_width(box_dims[0]);
                self.encode_tiled(&mut raw, swizzle, *address, dims, strides(dims[0], dims), box_dims)
            }
            TensorMap::Images { address, dims, pitch, box_dims, swizzle } => {
                self.encode_tiled(&mut raw, *swizzle, *address, dims, strides(*pitch, dims), box_dims)
            }
            TensorMap::Strided { address, dims, pitches: [of_1, of_2, of_3], box_dims, swizzle } => {
                let strides = [2 * of_1, 2 * of_2, 2 * of_3, 0];
                self.encode_tiled(&mut raw, *swizzle, *address, dims, strides, box_dims)
            }
            TensorMap::Windows(windows) => self.encode_windows(&mut raw, windows),
        };
        encoded.map_err(|error| with_map(error, map))?;
        let mut bytes = [0; TENSOR_MAP_BYTES];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(raw.opaque) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Ok(bytes)
    }

    fn encode_tiled<const RANK: usize>(
        &self,
        raw: &mut sys::CUtensorMap,
        swizzle: Swizzle,
        address: u64,
        dims: &[u64; RANK],
        strides: [u64; RANK],
        box_dims: &[u32; RANK],
    ) -> Result<(), Error> {
        let steps = [1_u32; RANK];
        // SAFETY: each array has as many elements as the rank says, the strides one less; all live over the call. The
        // address is only noted.
        unsafe {
            cu!(
                self.call(),
                cuTensorMapEncodeTiled(
                    raw,
                    sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                    RANK as u32,
                    address as *mut _,
                    dims.as_ptr(),
                    strides.as_ptr(),
                    box_dims.as_ptr(),
                    steps.as_ptr(),
                    sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                    swizzle.raw(),
                    sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                    sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                )
            )
        }
    }

    fn encode_windows(&self, raw: &mut sys::CUtensorMap, windows: &Windows) -> Result<(), Error> {
        let Windows { address, dims, lower, upper, strides: [step_w, step_h], channels, pixels } = windows;
        let (strides, steps) = (strides(dims[0], dims), [1, *step_w, *step_h, 1]);
        // SAFETY: four dimensions and steps, three strides, two coordinates of each corner; all live over the call.
        // The address is only noted.
        unsafe {
            cu!(
                self.call(),
                cuTensorMapEncodeIm2col(
                    raw,
                    sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                    4,
                    *address as *mut _,
                    dims.as_ptr(),
                    strides.as_ptr(),
                    lower.as_ptr(),
                    upper.as_ptr(),
                    *channels,
                    *pixels,
                    steps.as_ptr(),
                    sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                    Swizzle::of_width(*channels).raw(),
                    sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                    sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                )
            )
        }
    }
}

/// Bytes from one element to the next along each dimension but the first; along the second they are `pitch` halves. The
/// last element of the array is not used.
fn strides<const RANK: usize>(pitch: u64, dims: &[u64; RANK]) -> [u64; RANK] {
    let mut bytes = 2 * pitch;
    let mut stride = [bytes; RANK];
    for (stride, dim) in stride.iter_mut().zip(dims).skip(1) {
        bytes *= dim;
        *stride = bytes;
    }
    stride
}

/// Adds the map to an error, because the driver does not say which value is invalid.
fn with_map(error: Error, map: &TensorMap) -> Error {
    match error {
        Error::Driver { device, operation, status, code, class } => {
            Error::Driver { device, operation, status: format!("{status}, {map:?}"), code, class }
        }
        other => other,
    }
}
