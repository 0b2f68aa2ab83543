//! Copies into page-locked memory that a GPU is about to read.

/// Copies `from` over `to` by stores that bypass the caches, where the processor has them.
///
/// A GPU's copy engine reads lines that a core has just written from that core's cache, which takes twice as long as
/// from memory: 278 us instead of 131 for 4.8 MB that sixteen cores had filled, next to an H200
/// (benches/notes/2026-11-22-batcher-low-load.md).
///
/// # Panics
/// If the lengths differ.
#[cfg(target_arch = "x86_64")]
pub(super) fn copy(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    assert_eq!(to.len(), from.len(), "bytes of the two ends of a copy");
    // SAFETY: any bytes are a valid __m128i, and the other way round.
    let (head, body, _) = unsafe { to.align_to_mut::<__m128i>() };
    let (first, last) = (head.len(), head.len() + size_of_val(body));
    for (to, from) in body.iter_mut().zip(from[first..last].chunks_exact(size_of::<__m128i>())) {
        // SAFETY: both ends are 16 bytes, `to` is aligned and exclusively borrowed; SSE2 is part of x86-64. The fence below
        // comes before any other access to what is stored here.
        unsafe { _mm_stream_si128(to, _mm_loadu_si128(from.as_ptr().cast())) };
    }
    // SAFETY: SSE is part of x86-64.
    unsafe { _mm_sfence() };
    to[..first].copy_from_slice(&from[..first]);
    to[last..].copy_from_slice(&from[last..]);
}

/// Copies `from` over `to`.
///
/// # Panics
/// If the lengths differ.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn copy(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        let from: Vec<u8> = (0..200).map(|byte| byte as u8).collect();
        for begin in 0..17 {
            for len in 0..100 {
                let mut to = [255; 200];
                copy(&mut to[begin..begin + len], &from[3..3 + len]);
                assert_eq!(to[begin..begin + len], from[3..3 + len]);
                assert!(to[..begin].iter().chain(&to[begin + len..]).all(|&byte| byte == 255));
            }
        }
    }
}
