//! The tests' support code for loops and their comparison.
#![allow(dead_code, reason = "the tests use all of it")]

#[path = "../../../tests/support/loops.rs"]
pub mod loops;
#[path = "../../../tests/support/random.rs"]
pub mod random;
