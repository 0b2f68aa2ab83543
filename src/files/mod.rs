//! Files that users name: writing is atomic, and reading is limited.
//!
//! A reader finds the old content or all of the new content, even if the writing process is killed.
//!
//! ```
//! use trefoil::files;
//! # let path = std::env::temp_dir().join(format!("trefoil-report-{}.txt", std::process::id()));
//! files::check(&path)?; // before the work whose result it is to hold
//! files::write(&path, "110,023 images/s\n")?;
//! assert_eq!(std::fs::read_to_string(&path).unwrap(), "110,023 images/s\n");
//! # std::fs::remove_file(&path).unwrap();
//! # Ok::<(), trefoil::Error>(())
//! ```

#[cfg(feature = "cuda")]
pub(crate) mod own;
mod read;
mod source;
mod write;

pub(crate) use read::Opened;
pub use read::read;
pub(crate) use source::{Source, SourcePart, zeros};
pub use write::{check, copy, write};
