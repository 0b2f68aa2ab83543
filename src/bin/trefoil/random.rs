//! Pseudo-random numbers that are the same in each run, and rows of them.

use half::{bf16, f16};
use trefoil::{Dtype, RowSpec};

/// The SplitMix64 generator.
pub struct Random(u64);

impl Random {
    /// A generator: the same seed gives the same numbers, and neighbouring seeds give unrelated ones.
    pub fn new(seed: u64) -> Self {
        Self(Self(seed).next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number in (0, 1].
    pub fn positive(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A number from -1 up to 1, exclusive, in steps of 2^-7, which every float type can represent.
    pub fn signed(&mut self) -> f32 {
        (self.next() >> 56) as f32 / 128.0 - 1.0
    }

    /// Fills a port: floats from -1 to 1, bytes of any value; other integers and bools are 0 or 1, so that they are
    /// valid as indices.
    pub fn fill(mut self, to: &mut [u8], dtype: Dtype) {
        for elem in to.chunks_exact_mut(dtype.bytes()) {
            match dtype {
                Dtype::F16 => elem.copy_from_slice(&f16::from_f32(self.signed()).to_le_bytes()),
                Dtype::Bf16 => elem.copy_from_slice(&bf16::from_f32(self.signed()).to_le_bytes()),
                Dtype::F32 => elem.copy_from_slice(&self.signed().to_le_bytes()),
                Dtype::F64 => elem.copy_from_slice(&f64::from(self.signed()).to_le_bytes()),
                Dtype::U8 | Dtype::I8 => elem[0] = (self.next() >> 56) as u8,
                _ => {
                    elem.fill(0);
                    elem[0] = (self.next() >> 63) as u8; // little-endian
                }
            }
        }
    }
}

/// Random rows of these ports, one behind the other: one random row, whose ports are rotated by some elements in each
/// row.
pub fn batch(spec: &RowSpec, rows: usize, seed: u64) -> Vec<u8> {
    let mut row = vec![0; spec.row_bytes];
    for (index, port) in spec.ports().iter().enumerate() {
        Random::new((index as u64) << 48 ^ seed).fill(&mut row[port.offset..][..port.bytes()], port.dtype);
    }
    let mut batch = Vec::with_capacity(rows * spec.row_bytes);
    for _ in 0..rows {
        batch.extend_from_slice(&row);
        for port in spec.ports().iter().filter(|port| port.elems() > 0) {
            row[port.offset..][..port.bytes()].rotate_left(97 % port.elems() * port.dtype.bytes());
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::numbers;
    use trefoil::Shape;

    #[test]
    fn values_fit_their_types_and_are_the_same_again() {
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64, Dtype::I64, Dtype::Bool, Dtype::U8] {
            let row = |seed| {
                let mut bytes = vec![0xff; 1000 * dtype.bytes()];
                Random::new(seed).fill(&mut bytes, dtype);
                numbers(dtype, &bytes).collect::<Vec<_>>()
            };
            let (some, others) = (row(0), row(1));
            assert!(some == row(0) && some != others && some[1..] != others[..999], "{dtype}");
            let range = match dtype {
                Dtype::U8 => 0.0..=255.0,
                Dtype::I64 | Dtype::Bool => 0.0..=1.0,
                _ => -1.0..=1.0,
            };
            assert!(some.iter().all(|number| range.contains(number)), "{dtype}");
            let mean = some.iter().sum::<f64>() / 1000.0;
            assert!((mean - (range.start() + range.end()) / 2.0).abs() < 0.1 * range.end(), "{dtype}: {mean}");
        }
    }

    #[test]
    fn batches_are_random_and_differ() {
        for dtype in [Dtype::U8, Dtype::F16, Dtype::F32] {
            let spec = RowSpec::image("image", dtype, Shape::new(9, 7, 3));
            let (one, two) = (batch(&spec, 3, 1), batch(&spec, 3, 2));
            assert_eq!(one.len(), 3 * spec.row_bytes);
            assert!(one[..16] != two[..16]);
            assert!(one.chunks(spec.row_bytes).collect::<Vec<_>>().windows(2).all(|pair| pair[0] != pair[1]));
            assert!(numbers(dtype, &one).filter(|&number| number == 0.0).count() * 8 < 3 * 9 * 7 * 3);
        }
    }

    #[test]
    fn every_port_of_a_row_is_random() {
        let spec = RowSpec::new([("ids", Dtype::I64, vec![40]), ("features", Dtype::F32, vec![3, 20])]);
        let rows = batch(&spec, 2, 7);
        for row in rows.chunks(spec.row_bytes) {
            for port in spec.ports() {
                let values: Vec<f64> = numbers(port.dtype, &row[port.offset..][..port.bytes()]).collect();
                assert!(values.iter().any(|value| *value != values[0]), "{port}");
            }
        }
    }

    #[test]
    fn positive_numbers_keep_to_their_range() {
        let mut random = Random::new(1);
        let positives: Vec<f64> = (0..10_000).map(|_| random.positive()).collect();
        assert!(positives.iter().all(|x| *x > 0.0 && *x <= 1.0));
        let mean = positives.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
