//! Which page-locked rows are free.

/// A set of free places, taken round and round in ascending order: what is claimed in a row lies in a row, as far as it
/// is free, however mixed the order in which places came back. Neighbours go up in one copy.
pub(super) struct Places {
    /// A bit for each place: free.
    words: Vec<u64>,
    free: usize,
    /// The search begins here.
    next: usize,
}

const BITS: usize = u64::BITS as usize;

impl Places {
    /// All of `count` free.
    pub fn new(count: usize) -> Self {
        let mut places = Self { words: vec![0; count.div_ceil(BITS)], free: 0, next: 0 };
        (0..count).for_each(|place| places.give(place));
        places
    }

    /// Takes the first free place behind the one taken last.
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

    /// Makes `place` free.
    pub fn give(&mut self, place: usize) {
        let bit = 1 << (place % BITS);
        debug_assert_eq!(self.words[place / BITS] & bit, 0, "place {place} was free");
        self.words[place / BITS] |= bit;
        self.free += 1;
    }

    /// Makes `place` free that nothing was put in: if it was taken last, it is the next again.
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
