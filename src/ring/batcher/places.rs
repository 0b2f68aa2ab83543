//! The set of free page-locked rows.

/// A set of free places, taken in ascending order, again and again. So rows that are claimed one after the other lie
/// side by side as far as places are free, in whichever order places came back. One copy uploads all neighbours.
pub(super) struct Places {
    /// A bit for each place, set if the place is free.
    words: Vec<u64>,
    free: usize,
    /// The place at which the search begins.
    next: usize,
}

const BITS: usize = u64::BITS as usize;

impl Places {
    /// A set of `count` free places.
    pub fn new(count: usize) -> Self {
        let mut places = Self { words: vec![0; count.div_ceil(BITS)], free: 0, next: 0 };
        (0..count).for_each(|place| places.give(place));
        places
    }

    /// The number of free places.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Takes the first free place after the last one taken.
    pub fn take(&mut self) -> Option<usize> {
        if self.free == 0 {
            return None;
        }
        let (first, below) = (self.next / BITS, (1 << (self.next % BITS)) - 1);
        let words = self.words.len();
        let (word, bits) = std::iter::once((first, self.words[first] & !below))
            .chain((1..=words).map(|step| (first + step) % words).map(|word| (word, self.words[word])))
            .find(|(_, bits)| *bits != 0)?;
        let bit = bits.trailing_zeros() as usize;
        self.words[word] &= !(1 << bit);
        self.free -= 1;
        let place = word * BITS + bit;
        self.next = (place + 1) % (words * BITS);
        Some(place)
    }

    /// Frees `place`.
    pub fn give(&mut self, place: usize) {
        let bit = 1 << (place % BITS);
        debug_assert_eq!(self.words[place / BITS] & bit, 0, "place {place} was free");
        self.words[place / BITS] |= bit;
        self.free += 1;
    }

    /// Frees `place`, which was not used: if it was taken last, it is the next one again.
    pub fn unused(&mut self, place: usize) {
        self.give(place);
        if self.next == place + 1 {
            self.next = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_round_and_round() {
        for count in [1, 63, 64, 65, 130] {
            let mut places = Places::new(count);
            let all: Vec<_> = std::iter::from_fn(|| places.take()).collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
            assert_eq!(places.take(), None);
            all.iter().rev().for_each(|&place| places.give(place));
            assert_eq!(std::iter::from_fn(|| places.take()).collect::<Vec<_>>(), all);
        }
        let mut places = Places::new(130);
        let taken: Vec<_> = (0..100).filter_map(|_| places.take()).collect();
        places.give(5);
        assert_eq!(places.take(), Some(100));
        places.unused(100);
        assert_eq!((0..31).filter_map(|_| places.take()).last(), Some(5));
        assert_eq!((taken.len(), places.take()), (100, None));
    }
}
