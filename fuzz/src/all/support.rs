//! Loops and their comparison, as the tests have them.
#![allow(dead_code, reason = "the tests use all of it")]

#[path = "../../../tests/support/loops.rs"]
pub mod loops;
#[path = "../../../tests/support/random.rs"]
pub mod random;
