//! Where the bytes of a file are: in the file, or in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that are read at positions, from several threads at once if need be.
#[derive(Debug)]
pub(crate) enum Source {
    /// An open file.
    File(File),
    /// What a file would hold.
    Memory(Vec<u8>),
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
        }
    }
}
