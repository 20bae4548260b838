//! What training over MPI needs of the machine, and what takes too long for every commit: faults (`cargo xtask soak mpi`) and
//! measurements (`cargo xtask scaling`), both on ranks of this machine and in network namespaces.

pub mod faults;
pub mod network;
pub mod cost;
pub mod scaling;

use std::process::Command;

use crate::drivers::apt;

/// Installs Open MPI, and libclang to read its headers, where an MPI is missing.
pub fn install() -> Result<(), String> {
    let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if !cfg!(target_os = "linux") || (is_there("mpirun") && is_there("mpicc")) {
        return Ok(());
    }
    println!("there is no MPI: installing Open MPI, and libclang to read its headers");
    let update = apt(&["update"]);
    let packages = ["install", "--yes", "--no-install-recommends", "libopenmpi-dev", "openmpi-bin", "libclang-dev"];
    apt(&packages).or(update.and(Err("Open MPI could not be installed".to_string())))
}
