//! Vector clocks that share what they have in common.

use std::rc::Rc;

/// The number of lanes that are shared or copied together.
const PIECE: usize = 32;

/// For every lane, how many of its steps have ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Rc<Vec<Rc<[usize; PIECE]>>>);

impl Clock {
    /// The number of steps of a lane that have ended.
    pub fn of(&self, lane: usize) -> usize {
        self.0.get(lane / PIECE).map_or(0, |piece| piece[lane % PIECE])
    }

    /// At least `ended` steps of a lane have ended.
    pub fn raise(&mut self, lane: usize, ended: usize) {
        if self.of(lane) < ended {
            let pieces = self.pieces(lane / PIECE + 1);
            Rc::make_mut(&mut pieces[lane / PIECE])[lane % PIECE] = ended;
        }
    }

    /// All that have ended by another clock have ended.
    pub fn join(&mut self, other: &Self) {
        if Rc::ptr_eq(&self.0, &other.0) {
            return;
        }
        for (piece, other) in self.pieces(other.0.len()).iter_mut().zip(other.0.iter()) {
            let is_at_most = |a: &[usize; PIECE], b: &[usize; PIECE]| a.iter().zip(b).all(|(a, b)| a <= b);
            if Rc::ptr_eq(piece, other) || is_at_most(other, piece) {
                continue;
            }
            if is_at_most(piece, other) {
                *piece = Rc::clone(other);
            } else {
                Rc::make_mut(piece)
                    .iter_mut()
                    .zip(other.iter())
                    .for_each(|(ended, other)| *ended = (*ended).max(*other));
            }
        }
    }

    /// Whether no steps have ended, and the clock takes no memory.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// At least `least` pieces.
    fn pieces(&mut self, least: usize) -> &mut [Rc<[usize; PIECE]>] {
        let pieces = Rc::make_mut(&mut self.0);
        if pieces.len() < least {
            pieces.resize(least, Rc::new([0; PIECE]));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_has_the_later_time_of_each_lane() {
        let mut clocks = [Clock::default(), Clock::default()];
        clocks[0].raise(3, 5);
        clocks[0].raise(70, 1);
        clocks[1].raise(3, 2);
        clocks[1].raise(4, 8);
        let [mut a, b] = clocks;
        a.join(&b);
        a.raise(4, 7);
        assert_eq!([3, 4, 5, 70, 700].map(|lane| a.of(lane)), [5, 8, 0, 1, 0]);
        assert_eq!([3, 4, 70].map(|lane| b.of(lane)), [2, 8, 0]);
    }

    #[test]
    fn clocks_share_what_is_the_same() {
        let mut first = Clock::default();
        first.raise(1000, 1);
        let mut second = first.clone();
        second.raise(0, 1);
        first.join(&second);
        assert!(first.0.iter().zip(second.0.iter()).all(|(a, b)| Rc::ptr_eq(a, b)));
    }
}
