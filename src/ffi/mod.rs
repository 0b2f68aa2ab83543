//! The C interface, for C and for every language that can call C.
//!
//! `scripts/header.sh` generates `include/trefoil.h` from these files; its introduction is in
//! `scripts/header/cbindgen.toml`. A function here checks its arguments, finds the objects behind its handles, makes
//! one call of the Rust API, and turns the result into a status. Each function runs in [`status::guard`], so that no
//! panic leaves it; [`handles`] makes every number safe to pass as a handle.

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
