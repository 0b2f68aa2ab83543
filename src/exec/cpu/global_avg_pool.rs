//! y[c] = mean over all pixels of x[h][w][c]; x [H][W][C] without gaps, sums in order of the pixels.

/// One image; `y` has C elements and is apart from `x`.
pub(super) fn run(x: &[f32], channels: usize, y: &mut [f32]) {
    y.fill(0.0);
    for pixel in x.chunks_exact(channels) {
        y.iter_mut().zip(pixel).for_each(|(y, x)| *y += x);
    }
    let pixels = (x.len() / channels) as f32;
    y.iter_mut().for_each(|y| *y /= pixels);
}
