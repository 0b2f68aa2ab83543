//! All tests of `tests/ring.rs` on engines that record: a recorder changes nothing.

#[path = "ring.rs"]
mod ring;
