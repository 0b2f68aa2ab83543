//! The data of measurements: random numbers instead of zeros, the same in each run.

use crate::tensor::{Dtype, RowSpec};

/// A xorshift64 generator.
pub(crate) struct Noise(u64);

impl Noise {
    pub fn new() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Fills each port of a row, see [`Noise::fill`].
    pub fn fill_row(&mut self, row: &mut [u8], spec: &RowSpec) {
        spec.ports().iter().for_each(|port| self.fill(&mut row[port.range()], port.dtype));
    }

    /// Fills values with random whole numbers, or with random floats in [-1, 1).
    fn fill(&mut self, values: &mut [u8], dtype: Dtype) {
        let unit = |bits: u64| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
        for elem in values.chunks_exact_mut(dtype.bytes()) {
            let bits = self.next();
            match dtype {
                Dtype::F16 => elem.copy_from_slice(&half::f16::from_f32(unit(bits)).to_le_bytes()),
                Dtype::Bf16 => elem.copy_from_slice(&half::bf16::from_f32(unit(bits)).to_le_bytes()),
                Dtype::F32 => elem.copy_from_slice(&unit(bits).to_le_bytes()),
                Dtype::F64 => elem.copy_from_slice(&f64::from(unit(bits)).to_le_bytes()),
                Dtype::Bool => elem[0] = bits as u8 & 1,
                Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 | Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => {
                    elem.copy_from_slice(&bits.to_le_bytes()[..elem.len()])
                }
            }
        }
    }
}
