//! The check that names are unique.

use super::reader::{NAME, Reader};
use super::wire::Place;
use crate::error::{Error, printable};

/// The items in ascending order; their memory is charged to the budget.
pub(super) fn sorted<T: Ord>(
    items: impl ExactSizeIterator<Item = T>,
    place: Place,
    reader: &mut Reader<'_>,
) -> Result<Vec<T>, Error> {
    let mut sorted = Vec::new();
    reader.reserve(&mut sorted, items.len(), place)?;
    sorted.extend(items);
    sorted.sort_unstable();
    Ok(sorted)
}

/// An error if a name is missing or occurs twice. `what` says in errors what is named, such as `"an input"`.
pub(super) fn check<'n>(
    names: impl ExactSizeIterator<Item = &'n str>,
    what: &str,
    place: Place,
    reader: &mut Reader<'_>,
) -> Result<(), Error> {
    if names.len() == 0 {
        return Ok(());
    }
    let sorted = sorted(names, place, reader)?;
    if sorted.first() == Some(&"") {
        return Err(reader.fail(place, format_args!("{what} has no name")));
    }
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(reader.fail(place, format_args!("{what} `{}` is there twice", printable(pair[0], NAME)))),
        None => Ok(()),
    }
}
