//! Sources of bytes: a file, or memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes that are read at positions, also from several threads at the same time.
#[derive(Debug)]
pub(crate) enum Source {
    /// An open file.
    File(File),
    /// The content of a file in memory.
    Memory(Vec<u8>),
    /// Parts of other sources, one after the other.
    Parts(Vec<SourcePart>),
}

/// A part of a source.
#[derive(Debug)]
pub(crate) struct SourcePart {
    pub source: Arc<Source>,
    /// The offset of its first byte.
    pub offset: u64,
    pub bytes: u64,
}

impl Source {
    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if there are not as many, also where a file has been cut short; else as the
    /// system has it.
    pub fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(file) => file.read_exact_at(out, offset),
            Self::Memory(bytes) => {
                let start = usize::try_from(offset).ok();
                let range = start.and_then(|start| Some(start..start.checked_add(out.len())?));
                let bytes = range.and_then(|range| bytes.get(range)).ok_or(io::ErrorKind::UnexpectedEof)?;
                out.copy_from_slice(bytes);
                Ok(())
            }
            Self::Parts(parts) => read_parts(parts, out, offset),
        }
    }
}

/// Allocates zeros to read into; an error if there is no memory for a size that a file gives.
pub(crate) fn zeros<T: Clone + Default>(count: usize) -> io::Result<Vec<T>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(count).map_err(io::Error::other)?;
    zeros.resize(count, T::default());
    Ok(zeros)
}

/// Fills `out` with the bytes from `offset` on of all parts together.
fn read_parts(parts: &[SourcePart], mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    for part in parts {
        let here = part.bytes.saturating_sub(offset).min(out.len() as u64);
        let (now, rest) = out.split_at_mut(here as usize);
        if !now.is_empty() {
            part.source.read_at(now, part.offset + offset)?;
        }
        offset = offset.saturating_sub(part.bytes);
        out = rest;
    }
    if out.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_as_if_they_lay_one_behind_the_other() {
        let source = Arc::new(Source::Memory((0..20).collect()));
        let part = |offset, bytes| SourcePart { source: source.clone(), offset, bytes };
        let parts = Source::Parts(vec![part(10, 4), part(3, 0), part(0, 3), part(17, 3)]);
        let whole: Vec<u8> = vec![10, 11, 12, 13, 0, 1, 2, 17, 18, 19];
        for start in 0..=whole.len() {
            for end in start..=whole.len() {
                let mut out = vec![0xff; end - start];
                parts.read_at(&mut out, start as u64).unwrap();
                assert_eq!(out, whole[start..end]);
            }
            let mut beyond = vec![0; whole.len() - start + 1];
            let error = parts.read_at(&mut beyond, start as u64).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
