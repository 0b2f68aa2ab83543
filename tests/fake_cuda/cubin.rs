//! Cubins: ELF files whose section `.nv.info.NAME` lists attributes of the kernel NAME.

use crate::module::Kernel;

/// Offset and size of a field.
type Field = (usize, usize);

/// Fields of the file's header: the offset of the section headers, their number, and the index of the names' section.
const SECTIONS: [Field; 3] = [(0x28, 8), (0x3c, 2), (0x3e, 2)];
/// Fields of a section's header: the offset of its name, its own offset and its size.
const SECTION: [Field; 3] = [(0, 4), (0x18, 8), (0x20, 8)];
const SECTION_BYTES: usize = 64;

/// Formats and numbers of a kernel's attributes; behind both come two bytes: the value, or the size of the value.
const SIZED: u8 = 4;
const MAX_THREADS: u8 = 0x05;
const PARAMETER_BYTES: u8 = 0x19;

/// The kernels of a cubin.
///
/// # Safety
/// `image` is a whole cubin.
pub unsafe fn kernels(image: *const u8) -> Option<Vec<Kernel>> {
    // SAFETY: by the caller, for ranges that the file itself names.
    let bytes = |start: usize, len: usize| unsafe { std::slice::from_raw_parts(image.add(start), len) };
    let number = |base: usize, (offset, len): Field| little_endian(bytes(base + offset, len));
    let [start, count, names] = SECTIONS.map(|field| number(0, field));
    let section = |index: usize| SECTION.map(|field| number(start + index * SECTION_BYTES, field));
    let [_, names, names_bytes] = section(names);
    let mut kernels = Vec::new();
    for index in 0..count {
        let [name, offset, len] = section(index);
        let name = bytes(names, names_bytes)[name..].split(|&byte| byte == 0).next()?;
        if let Some(name) = std::str::from_utf8(name).ok()?.strip_prefix(".nv.info.") {
            kernels.push(kernel(name, bytes(offset, len))?);
        }
    }
    Some(kernels)
}

fn kernel(name: &str, mut attributes: &[u8]) -> Option<Kernel> {
    let (mut argument_bytes, mut threads) = (0, 0);
    while let [format, number, low, high, rest @ ..] = attributes {
        let value = little_endian(&[*low, *high]);
        let (content, rest) = rest.split_at_checked(if *format == SIZED { value } else { 0 })?;
        match *number {
            PARAMETER_BYTES => argument_bytes = value,
            MAX_THREADS => threads = content.chunks_exact(4).map(|n| little_endian(n) as u32).product(),
            _ => {}
        }
        attributes = rest;
    }
    (argument_bytes > 0 && threads > 0).then(|| Kernel::precompiled(name, argument_bytes, threads))
}

fn little_endian(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte))
}
