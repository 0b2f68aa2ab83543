//! NumPy's .npz files: zip archives of .npy files, without compression.

use anyhow::{Context, Result, ensure};

/// 1 January 1980 in DOS format: a fixed date, so that the same arrays make the same file.
const DATE: u16 = 1 << 5 | 1;
/// The flag for names in UTF-8.
const FLAGS: u16 = 1 << 11;
const VERSION: u16 = 20;

/// The content of an archive with these files, each with its name.
pub fn write(files: &[(String, Vec<u8>)]) -> Result<Vec<u8>> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let (about, start) = (about(name, content)?, small(archive.len())?);
        archive.extend_from_slice(b"PK\x03\x04");
        archive.extend_from_slice(&about);
        archive.extend_from_slice(name.as_bytes());
        archive.extend_from_slice(content);
        directory.extend_from_slice(b"PK\x01\x02");
        directory.extend_from_slice(&VERSION.to_le_bytes());
        directory.extend_from_slice(&about);
        directory.extend_from_slice(&[0; 10]); // no comment, the first disk, no attributes
        directory.extend_from_slice(&start.to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
    }
    let count = u16::try_from(files.len()).context("more arrays than an .npz file can have")?.to_le_bytes();
    let [at, bytes] = [archive.len(), directory.len()].map(|n| small(n).map(u32::to_le_bytes));
    let end = [&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &bytes?, &at?, &[0; 2]].concat();
    Ok([archive, directory, end].concat())
}

/// The fields of a file's entry that its local header and the central directory share.
fn about(name: &str, content: &[u8]) -> Result<Vec<u8>> {
    let length = u16::try_from(name.len()).context("a name longer than an .npz file can have")?;
    let (sum, bytes) = (crc32fast::hash(content), small(content.len())?);
    let shorts = [VERSION, FLAGS, 0, 0, DATE].map(u16::to_le_bytes).concat();
    let longs = [sum, bytes, bytes].map(u32::to_le_bytes).concat();
    Ok([shorts, longs, [length, 0].map(u16::to_le_bytes).concat()].concat())
}

fn small(bytes: usize) -> Result<u32> {
    ensure!(bytes < u32::MAX as usize, "the results are more than the 4 GiB of an .npz file: run fewer rows at a time");
    Ok(bytes as u32)
}
