//! A hash of bytes (FNV), for short names.

/// FNV-1a of `bytes` as 16 hexadecimal digits: the same in each run and on each machine. Whoever chooses the bytes can make
/// two of one name.
pub(crate) fn fnv1a64(bytes: &[u8]) -> String {
    let hash = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_algorithm() {
        assert_eq!([fnv1a64(b""), fnv1a64(b"a")], ["cbf29ce484222325", "af63dc4c8601ec8c"]);
        assert_eq!(fnv1a64(b"foobar"), "85944171f73967e8");
    }
}
