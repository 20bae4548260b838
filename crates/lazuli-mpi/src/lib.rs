//! Training on many machines: the same model and the same step, data-parallel over MPI. `mpirun` or `srun` starts the ranks;
//! each has a part of every batch, and after every step all have the same parameters.
//!
//! One thread drives MPI, at level FUNNELED: it polls what is under way while the program computes, sends signs of life, and
//! ends the job if a rank is not heard of in time. An error on one rank is an error on all of them.
//!
//! Batch norm looks at each rank's own part of the batch, and its running means are those of each rank: rank 0 saves its own.
//! Dropout leaves out something else on each rank. So models with either are the same on all ranks and from run to run, but
//! not the ones that a single rank would train.

#[cfg(windows)]
compile_error!("lazuli-mpi runs where Open MPI or MPICH do: on Linux and macOS, not on Windows");

/// The guide's chapter, whose examples run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/7-many-machines.md")]
mod guide {}

mod raw;
mod reduce;
mod clock;
mod signs;
mod notice;
mod collectives;
mod progress;
mod devices;
mod world;
mod agree;
mod buckets;
mod sharded;
mod distributed;

pub use distributed::{Distributed, Overlap};
pub use reduce::{Reduce, Wire};
pub use world::{Settings, World, run};
