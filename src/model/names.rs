//! "Did you mean": the names most similar to one that does not exist.

/// The largest number of edits between a name and a similar one.
const MAX_EDITS: usize = 8;

/// The largest length, in bytes, of names that are compared or reported. The cost of a comparison is the product of two
/// lengths, and names come from files.
const MAX_BYTES: usize = 256;

/// Up to `most` of `candidates` that are nearest to `name`, each in backquotes, nearest first.
pub(super) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>, most: usize) -> Vec<String> {
    if name.len() > MAX_BYTES {
        return Vec::new();
    }
    let limit = MAX_EDITS.min(name.len().div_ceil(2));
    let mut near: Vec<(usize, &str)> = candidates
        .filter(|candidate| candidate.len() <= MAX_BYTES && candidate.len().abs_diff(name.len()) <= limit)
        .map(|candidate| (edits(name.as_bytes(), candidate.as_bytes()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .collect();
    near.sort_unstable();
    near.into_iter().take(most).map(|(_, candidate)| format!("`{candidate}`")).collect()
}

/// Levenshtein's distance: the number of bytes to insert, delete or replace.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("layer1", "layer2", 1)] {
            assert_eq!(edits(a.as_bytes(), b.as_bytes()), expected);
            assert_eq!(edits(b.as_bytes(), a.as_bytes()), expected);
        }
    }

    #[test]
    fn nearest_first() {
        let names = ["layer1.0.conv1", "layer1.0.conv2", "fc", "layer4.0.conv22"];
        assert_eq!(nearest("layer1.0.conv3", names.into_iter(), 2), ["`layer1.0.conv1`", "`layer1.0.conv2`"]);
        assert!(nearest("something else", names.into_iter(), 3).is_empty());
        assert!(nearest(&"x".repeat(1 << 20), names.into_iter(), 3).is_empty());
    }
}
