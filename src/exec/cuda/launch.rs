//! The launch that every launcher returns, and the checks that launchers share. This file uses no CUDA symbols.

use std::borrow::Cow;

use bytemuck::{NoUninit, Zeroable};

use crate::device::cuda::{TENSOR_MAP_BYTES, TensorMap};
use crate::error::Error;
use crate::graph::e4m3;
use crate::tensor::Activation;

/// One kernel launch, ready to be enqueued or captured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Launch {
    /// Name of the entry point.
    pub(crate) entry: Cow<'static, str>,
    /// Blocks along each axis.
    pub(crate) grid: [u32; 3],
    /// Neighbouring blocks that run at the same time and read each other's shared memory; 1 means none.
    pub(crate) cluster: u32,
    /// Threads of a block along each axis.
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub(crate) shared_bytes: u32,
    /// The one by-value argument.
    pub(crate) args: ArgBytes,
    /// Tensor maps, which are encoded into the first bytes of `args` before the launch is enqueued.
    pub(crate) maps: Vec<TensorMap>,
    /// Whether the kernel waits for its predecessor in the stream itself, so that it may start before that has ended.
    pub(crate) waits_itself: bool,
}

impl Launch {
    /// A one-dimensional launch without dynamic shared memory.
    pub(crate) fn flat<A: NoUninit>(entry: &'static str, blocks: u32, threads: u32, args: &A) -> Self {
        let args = ArgBytes::new(args);
        let (grid, block) = ([blocks, 1, 1], [threads, 1, 1]);
        Self {
            entry: entry.into(),
            grid,
            cluster: 1,
            block,
            shared_bytes: 0,
            args,
            maps: Vec::new(),
            waits_itself: false,
        }
    }
}

/// The bytes of an argument struct, stored inline and aligned for any such struct.
#[derive(Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct ArgBytes {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl ArgBytes {
    const CAPACITY: usize = 1152;

    /// Copies `args`.
    pub(crate) fn new<A: NoUninit>(args: &A) -> Self {
        const { assert!(size_of::<A>() <= Self::CAPACITY && align_of::<A>() <= 64) };
        Self::of_bytes(bytemuck::bytes_of(args)).expect("as asserted")
    }

    /// Copies the bytes of a struct whose size is known at run time; `None` if they do not fit.
    pub(crate) fn of_bytes(source: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::CAPACITY];
        bytes.get_mut(..source.len())?.copy_from_slice(source);
        Some(Self { bytes, len: source.len() })
    }

    /// Puts an encoded tensor map at its index among the maps that the struct begins with.
    pub(crate) fn put_map(&mut self, index: usize, map: &[u8; TENSOR_MAP_BYTES]) {
        self.bytes[index * TENSOR_MAP_BYTES..self.len][..TENSOR_MAP_BYTES].copy_from_slice(map);
    }

    /// The struct's bytes, 64-byte aligned.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The struct that the bytes are of.
    #[cfg(test)]
    pub(crate) fn read<A: bytemuck::AnyBitPattern>(&self) -> A {
        bytemuck::pod_read_unaligned(self.as_bytes())
    }
}

impl std::fmt::Debug for ArgBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of arguments", self.len)
    }
}

/// The place of the rows of a matrix of halves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Address of the first value.
    pub(crate) address: u64,
    /// Halves from one row to the next, a multiple of 8.
    pub(crate) pitch: usize,
}

/// Declares an argument struct as a kernel has it: `repr(C)` without padding, its size asserted, and its fields listed
/// for the comparison with the kernel's source.
macro_rules! kernel_args {
    ($(#[$doc:meta])* $name:ident, $bytes:literal bytes { $($field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $ty,)*
        }

        const _: () = assert!(size_of::<$name>() == $bytes);

        #[cfg(test)]
        impl $name {
            /// Name, offset and size of each field.
            pub(crate) const FIELDS: &[(&str, usize, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$ty>()),)*];
        }
    };
}
pub(crate) use kernel_args;

/// Division by a constant of the launch, as in `common.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, Zeroable)]
#[repr(C)]
pub(crate) struct FastDivide {
    multiplier: u32,
    shift: u32,
}

impl FastDivide {
    /// Division of numbers below 2^31 by `divisor`, which is from 1 to 2^31.
    pub(crate) fn by(divisor: u32) -> Self {
        assert!((1..=1 << 31).contains(&divisor), "divisor {divisor}");
        if divisor == 1 {
            return Self { multiplier: 0, shift: 0 };
        }
        let shift = (divisor - 1).ilog2();
        let multiplier = (1_u64 << (32 + shift)).div_ceil(u64::from(divisor));
        Self { multiplier: multiplier as u32, shift }
    }

    /// The quotient, computed as on the device.
    #[cfg(test)]
    pub(crate) fn divide(self, n: u32) -> u32 {
        match self.multiplier {
            0 => n,
            m => ((u64::from(n) * u64::from(m)) >> 32) as u32 >> self.shift,
        }
    }
}

/// The number of an activation in kernels that clamp.
///
/// # Errors
/// [`Error::Unsupported`] for an activation that does not clamp.
pub(crate) fn activation_code(activation: Activation) -> Result<i32, Error> {
    match activation {
        Activation::None => Ok(0),
        Activation::Relu => Ok(1),
        Activation::Relu6 => Ok(2),
        Activation::Silu | Activation::Gelu => {
            Err(unsupported("activation", activation, "this kernel does not apply it"))
        }
    }
}

/// Values of a 16-byte access: channels are stored in multiples of it.
pub(crate) const CHUNK: usize = 8;

/// Shared memory that a block may have on compute capability 9.0, in bytes.
pub(super) const SM90_SHARED_BYTES: u32 = 227 << 10;

/// `channels / 8`, or an error if they are not a positive multiple of 8.
pub(crate) fn chunks_of(what: &str, channels: usize) -> Result<usize, Error> {
    if channels == 0 || !channels.is_multiple_of(CHUNK) {
        return Err(unsupported(what, channels, "stored channels are a positive multiple of 8"));
    }
    Ok(channels / CHUNK)
}

/// `value` as the kernel's integer type, or an error unless `min <= value < limit`.
pub(crate) fn in_range(what: &str, value: usize, min: usize, limit: usize) -> Result<i32, Error> {
    match i32::try_from(value) {
        Ok(narrow) if value >= min && value < limit => Ok(narrow),
        _ => Err(unsupported(what, value, &format!("the kernel takes {min} to {}", limit - 1))),
    }
}

/// The distance in channels from one pixel to the next, for pixels of `channels`; an error unless it is a multiple of 8
/// and not less than `channels`.
pub(crate) fn pitch(pitch: usize, channels: usize) -> Result<i32, Error> {
    chunks_of("pitch", pitch)?;
    in_range("pitch", pitch, channels, 1 << 28)
}

/// The product of `factors`, or an error if it is 0 or not below 2^31.
pub(crate) fn product(what: &str, factors: &[usize]) -> Result<u32, Error> {
    let product = factors.iter().try_fold(1_usize, |product, &factor| product.checked_mul(factor));
    match product {
        Some(value @ 1..=0x7fff_ffff) => Ok(value as u32),
        Some(0) => Err(unsupported(what, 0, "the kernel takes at least 1")),
        _ => Err(unsupported(what, "2^31 or more", "use a smaller batch or image")),
    }
}

/// An error unless `address` is a non-null multiple of `align`.
pub(crate) fn aligned(operand: &'static str, address: u64, align: u64) -> Result<u64, Error> {
    if address == 0 || !address.is_multiple_of(align) {
        return Err(Error::option(operand, format!("{address:#x}"), format!("a multiple of {align}, not null")));
    }
    Ok(address)
}

/// What a kernel multiplies results by before it rounds them to codes of e4m3 with this scale; 1 if results are no codes.
pub(crate) fn to_codes(scale: Option<f32>) -> Result<f32, Error> {
    match scale {
        None => Ok(1.0),
        Some(scale) if e4m3::is_scale(scale) => Ok(scale.recip()),
        Some(scale) => {
            Err(unsupported("scale of codes", scale, "it and its reciprocal are positive and normal numbers"))
        }
    }
}

/// An [`Error::Unsupported`] about `value`, with `instead` as the way out.
pub(crate) fn unsupported(what: &str, value: impl std::fmt::Display, instead: &str) -> Error {
    Error::Unsupported { what: format!("{what} = {value}"), instead: instead.to_owned() }
}

/// The number that a norm adds to the variance.
pub(crate) fn positive_epsilon(epsilon: f32) -> Result<f32, Error> {
    match epsilon.is_finite() && epsilon > 0.0 {
        true => Ok(epsilon),
        false => Err(unsupported("epsilon", epsilon, "a positive number is added to the variance")),
    }
}

/// The limit of counts and indices, which stay below it: 2^31.
pub(crate) const INDEX_LIMIT: usize = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_is_exact_below_two_to_the_31() {
        let edges = [0, 1, 2, 3, 6, 7, 8, 48, 49, 3135, 3136, 12543, 12544, 65535, 65536, (1 << 31) - 2, (1 << 31) - 1];
        for divisor in (1..3000).chain([12544, 50176, 65535, 65537, 1 << 20, (1 << 30) + 1, (1 << 31) - 1, 1 << 31]) {
            let fast = FastDivide::by(divisor);
            for n in edges.into_iter().chain((1..64).map(|i: u32| (i * 34_567_891) & 0x7fff_ffff)) {
                assert_eq!(fast.divide(n), n / divisor, "{n} / {divisor}");
            }
            let last = 0x7fff_ffff / divisor * divisor;
            assert_eq!(fast.divide(last), last / divisor);
            if last > 0 {
                assert_eq!(fast.divide(last - 1), (last - 1) / divisor);
            }
        }
    }

    #[test]
    fn arguments_come_back_and_are_aligned() {
        let bytes = ArgBytes::new(&[1_u64, 2, 3]);
        assert_eq!(bytes.as_bytes().len(), 24);
        assert_eq!(bytes.as_bytes().as_ptr() as usize % 64, 0);
        assert_eq!(bytes.read::<[u64; 3]>(), [1, 2, 3]);
        let mut bytes = ArgBytes::new(&[7_u64; 64]);
        bytes.put_map(1, &[0; TENSOR_MAP_BYTES]);
        assert_eq!(bytes.read::<[u64; 64]>().map(|word| word == 7), std::array::from_fn(|i| !(16..32).contains(&i)));
    }

    #[test]
    fn checks_refuse_what_a_kernel_would_not_survive() {
        assert!(chunks_of("C", 0).is_err() && chunks_of("C", 12).is_err());
        assert_eq!(chunks_of("C", 24).unwrap(), 3);
        assert!(pitch(20, 8).is_err() && pitch(8, 16).is_err() && pitch(0, 0).is_err());
        assert_eq!(pitch(24, 16).unwrap(), 24);
        assert!(in_range("x", 0, 1, 10).is_err() && in_range("x", 10, 1, 10).is_err());
        assert_eq!(in_range("x", 9, 1, 10).unwrap(), 9);
        assert!(product("x", &[1 << 16, 1 << 15]).is_err() && product("x", &[3, 0]).is_err());
        assert!(product("x", &[usize::MAX, 2]).is_err());
        assert_eq!(product("x", &[(1 << 31) - 1]).unwrap(), (1 << 31) - 1);
        assert!(aligned("x", 0, 16).is_err() && aligned("x", 24, 16).is_err());
        assert_eq!(aligned("x", 32, 16).unwrap(), 32);
    }
}
