//! Parts that programs which time one operation alone share: operands that rotate, and medians of rounds in turn.

use half::f16;
use trefoil::Error;

/// Number of launches between two marks.
pub const LAUNCHES: usize = 12;
/// Seconds of the half that counts, and of the one that does not.
const SUSTAINED_SECONDS: f64 = 0.12;
/// Bytes that operands rotate over: more than a GPU's L2 cache has.
const ROTATION_BYTES: usize = 200 << 20;

/// The number of copies, of operands with this many bytes, that launches rotate over.
pub fn copies(bytes: usize) -> usize {
    (ROTATION_BYTES / bytes).clamp(2, LAUNCHES)
}

/// Microseconds of a launch of each of `count` operations: the median of rounds in which all run in turn, after one
/// round that fills the caches. `run` runs the operation of an index this many times, and returns the seconds that all
/// launches took.
pub fn medians(
    count: usize,
    rounds: usize,
    mut run: impl FnMut(usize, usize) -> Result<f64, Error>,
) -> Result<Vec<f64>, Error> {
    let mut micros = vec![Vec::new(); count];
    for round in 0..=rounds.max(1) {
        for (index, micros) in micros.iter_mut().enumerate() {
            let seconds = run(index, LAUNCHES)?;
            if round > 0 {
                micros.push(1e6 * seconds / LAUNCHES as f64);
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(micros.into_iter().map(median).collect())
}

/// Microseconds of a launch of each of `count` operations, each by itself for some time, of which the second half counts: at
/// the clock that its own power leaves. Twice, the second time in the opposite order; the mean of both.
#[allow(dead_code, reason = "of one example")]
pub fn sustained(count: usize, mut run: impl FnMut(usize, usize) -> Result<f64, Error>) -> Result<Vec<f64>, Error> {
    let mut micros = vec![0.0; count];
    for index in (0..count).chain((0..count).rev()) {
        let launches = (SUSTAINED_SECONDS * LAUNCHES as f64 / run(index, LAUNCHES)?) as usize + 1;
        run(index, launches)?;
        micros[index] += 0.5e6 * run(index, launches)? / launches as f64;
    }
    Ok(micros)
}

/// Stops the program unless the first `count` values of a result, which were NaN before the launch, are finite.
pub fn assert_written<T: Copy + Into<f64>>(result: &[T], count: usize) {
    assert!(result[..count].iter().all(|&value| value.into().is_finite()), "a result was not written");
}

/// Random halves from -spread to spread.
pub struct Random(pub u32);

impl Random {
    /// The next `count` halves, from -spread to spread.
    pub fn halves(&mut self, count: usize, spread: f32) -> Vec<f16> {
        (0..count).map(|_| f16::from_f32(spread * self.signed())).collect()
    }

    /// The next `count` codes of e4m3, of numbers between -2 and 2.
    #[allow(dead_code, reason = "of one example")]
    pub fn codes(&mut self, count: usize) -> Vec<u8> {
        let code = |bits: u32| (bits >> 9 & 0x3f | bits >> 24 & 0x80) as u8;
        (0..count).map(|_| self.signed().to_bits()).map(code).collect()
    }

    /// A number from -1 to 1.
    fn signed(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0
    }
}
