//! Position embeddings: tables of positions at other sizes, angles, and biases of scores by distance.

use super::turned::frequencies;
use crate::error::Error;
use crate::graph::{Op, Resize, ResizeCoordinates, ResizeMode, Tensor, ValueType};
use crate::loops;
use crate::tensor::Dtype;

/// The coefficients of PyTorch's cubic interpolation, without and with a filter.
const CUBIC: [f64; 2] = [-0.75, -0.5];

/// Position embeddings of a grid `[height, width, values]`, interpolated for another grid. With `antialias`, they are
/// filtered for a smaller grid, and values outside of the grid are left out instead of repeating its edge.
pub(super) fn resized(table: Tensor, to: [usize; 2], antialias: bool) -> Result<Tensor, Error> {
    let from = table.value_type().dims.clone();
    if from[..2] == to {
        return Ok(table);
    }
    let dims = vec![to[0], to[1], from[2]];
    let resize = Resize {
        mode: ResizeMode::Cubic(CUBIC[usize::from(antialias)]),
        coordinates: ResizeCoordinates::HalfPixel,
        scales: dims.iter().zip(&from).map(|(to, from)| *to as f64 / *from as f64).collect(),
        dims: dims.clone(),
        crop: vec![[0.0, 1.0]; 3],
        antialias,
        exclude_outside: antialias,
        outside: None,
    };
    let of = ValueType::new(Dtype::F32, &dims);
    Ok(loops::compute(&Op::Resize(resize), &[Some(&table)], &[of])?.remove(0))
}

/// The angles by which the queries and keys of each patch of a grid are turned: half of the planes by the patch's place
/// along the height, the others by its place along the width. The middle of the grid has the angle 0; at its edges, the
/// fastest planes have made a whole turn.
pub(super) fn grid_angles(grid: [usize; 2], base: f64, dims: usize) -> Vec<Vec<f32>> {
    let speeds = frequencies(base, dims / 4);
    let centre = |index: usize, count: usize| 2.0 * ((index as f32 + 0.5) / count as f32) - 1.0;
    let angles = |at: f32| speeds.iter().map(move |speed| 2.0 * std::f32::consts::PI * at * speed);
    let places = (0..grid[0]).flat_map(|y| (0..grid[1]).map(move |x| (y, x)));
    places.map(|(y, x)| angles(centre(y, grid[0])).chain(angles(centre(x, grid[1]))).collect()).collect()
}

/// The bucket of the distance for each pair of a token and a key, as in MPNet and T5. Each direction has half of the
/// buckets; the first half of those have one distance each, the others logarithmic ranges up to [`FAR`].
pub(super) fn buckets(tokens: usize, buckets: usize) -> Vec<i64> {
    let pairs = (0..tokens).flat_map(|token| (0..tokens).map(move |key| key as i64 - token as i64));
    pairs.map(|distance| bucket(distance, buckets as i64)).collect()
}

/// The bucket of each distance between tokens of a row of up to `longest` tokens, in the order of `distances`.
pub(super) fn buckets_by_distance(longest: usize, buckets: usize) -> Vec<i64> {
    distances(longest).map(|distance| bucket(distance, buckets as i64)).collect()
}

/// The distances from a token to a key in a row of up to `longest` tokens, ascending. A key before the token has a
/// negative one.
pub(super) fn distances(longest: usize) -> impl Iterator<Item = i64> {
    1 - longest as i64..longest as i64
}

/// The distance from which on all distances are in the last bucket of their direction.
const FAR: f64 = 128.0;

fn bucket(distance: i64, buckets: i64) -> i64 {
    let half = buckets / 2;
    let direction = if distance > 0 { half } else { 0 };
    let (far, exact) = (distance.abs(), half / 2);
    if far < exact {
        return direction + far;
    }
    // In f32 like the original, because its rounding decides the boundaries.
    let share = (far as f32 / exact as f32).ln() / (FAR / exact as f64).ln() as f32;
    direction + (exact + (share * (half - exact) as f32) as i64).min(half - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of `relative_position_bucket` of the library `transformers`, run on these distances with 32 buckets.
    #[test]
    fn buckets_are_those_of_the_original() {
        let original = [
            (0, 0),
            (-1, 1),
            (1, 17),
            (-7, 7),
            (-8, 8),
            (8, 24),
            (-11, 8),
            (-12, 9),
            (-15, 9),
            (-16, 10),
            (16, 26),
            (-22, 10),
            (-23, 11),
            (-32, 12),
            (-45, 12),
            (-46, 13),
            (-63, 13),
            (-64, 14),
            (-90, 14),
            (-91, 15),
            (-128, 15),
            (500, 31),
        ];
        for (distance, expected) in original {
            assert_eq!(bucket(distance, 32), expected, "{distance}");
        }
        assert_eq!(buckets(2, 32), [0, 17, 1, 0]);
        assert_eq!(buckets_by_distance(2, 32), [1, 0, 17]);
    }

    #[test]
    fn a_table_keeps_its_values_at_its_own_size_and_constants_at_every_size() {
        let table = Tensor::of(&[2, 2, 1], &[1.0_f32, 2.0, 3.0, 4.0]);
        assert_eq!(resized(table.clone(), [2, 2], false).unwrap(), table);
        let constant = Tensor::of(&[3, 3, 2], &[0.5_f32; 18]);
        for (to, antialias) in [([5, 4], false), ([2, 1], true), ([2, 2], false)] {
            let other = resized(constant.clone(), to, antialias).unwrap();
            assert_eq!(other.value_type().dims, [to[0], to[1], 2]);
            assert!(other.elems::<f32>().iter().all(|x| (x - 0.5).abs() < 1e-6), "{other:?}");
        }
    }
}
