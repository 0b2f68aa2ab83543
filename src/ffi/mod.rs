//! The C interface: the same engine for C, and through C for every language that calls it.
//!
//! `include/trefoil.h` is made of these files by `scripts/header.sh`; its introduction is in
//! `scripts/header/cbindgen.toml`. A function here checks its arguments, finds the objects behind its handles, makes one
//! call of the Rust API, and turns the answer into a status. [`status::guard`] is around each, so that no panic leaves;
//! [`handles`] makes every handle safe to pass, whatever it is.

#![allow(non_camel_case_types, reason = "the names are those of the C header")]

mod batch;
mod batcher;
mod callback;
mod device;
mod engine;
mod fleet;
mod growing;
mod handles;
mod layout;
mod log;
mod model;
mod on_device;
mod output;
mod pointers;
mod port;
#[cfg(test)]
mod random_calls;
mod rows;
mod sizes;
mod states;
mod status;
mod ticket;
mod trace;
mod version;
