//! Decisions made from bytes, so that a fuzzer that changes bytes changes decisions.

/// The bytes that are left. After the last one follow zeros.
pub struct Source<'a>(pub &'a [u8]);

/// Integers at which behaviour may change.
const EDGES: [i64; 16] = [
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
    1 << 62,
    1 << 40,
    1 << 32,
    u32::MAX as i64,
    1 << 31,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 20,
    65_536,
    4096,
    1000,
    -1000,
    -(1 << 40),
];

impl Source<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// True for one in `count` decisions.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == count - 1
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A small integer, or rarely one of any size.
    pub fn int(&mut self) -> i64 {
        if self.one_in(12) { self.pick(&EDGES) } else { self.below(12) as i64 - 3 }
    }

    /// A small number, or rarely an extreme one, an infinity or a NaN.
    pub fn float(&mut self) -> f32 {
        match self.one_in(16) {
            true => self.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.0, 1e-42, 1e30, -1e9]),
            false => f32::from(self.byte() as i8) / 16.0,
        }
    }

    /// A list of up to `most` elements.
    pub fn some<T>(&mut self, most: usize, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| one(self)).collect()
    }
}
