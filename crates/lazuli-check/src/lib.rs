//! Checks of a device against an oracle in f64: random programs over the whole public API, and every form of kernel by
//! name. Tests of the engine use it, and so does `lazuli doctor`.
//!
//! What an op gives must lie within bounds that the oracle derives from the errors the ops state. A program is drawn from
//! dice (`dice`, `program`) by families of ops (`leaf` to `model`), each of which knows its own oracle (over cells and
//! arrays), its call and its text. `check` runs it in several ways, `search` draws until one fails, `shrink` makes that one
//! small, `print` writes it as a test. `forms` has programs for each kind of kernel that the engine has.
//!
//! `LAZULI_RANDOM_TRACE` names a file that always holds the program that runs, for the day when one takes the process down
//! with it; `LAZULI_RANDOM_SKIP=gather,sort` leaves ops out whose faults are known.
//!
//! ```
//! let cpu = lazuli::Device::cpu();
//! let _subject = lazuli_check::on(&cpu)?;
//! for form in lazuli_check::forms().iter().take(2) {
//!     let verdict = form.check();
//!     assert!(verdict.failures.is_empty(), "{}: {verdict:?}", form.name);
//! }
//! # Ok::<(), lazuli::Error>(())
//! ```

mod subject;
mod dice;
mod cell;
mod array;
mod data;
pub mod methods;
mod program;
mod row;
mod leaf;
mod map;
mod movement;
mod join;
mod reduce;
mod line;
mod contract;
mod index;
mod model;
mod check;
mod shrink;
mod search;
mod print;
mod forms;
pub mod testing;

pub use array::Array;
pub use cell::Cell;
pub use check::{Failure, Mode, Results, What, check, quietly, run_and_compare};
pub use forms::{Form, Verdict, forms};
pub use print::source;
pub use program::{Limits, Node, Op, Program};
pub use search::{Found, drawn, search};
pub use subject::{Subject, device, on};
