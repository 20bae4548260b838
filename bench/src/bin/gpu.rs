//! Measures all contenders on one GPU in one process and prints one table, then what an evaluation costs the host. See
//! `--help`.

use lazuli::Device;
use lazuli_bench::command::{self, Field};
use lazuli_bench::gpu;

fn main() {
    command::main("gpu", |options| {
        let device = Device::open(&options.device).map_err(|error| error.to_string())?;
        options.print(&gpu::host_cost(&device, options.n_rounds)?);
        Ok(Field { place: device.info().to_string(), workloads: gpu::WORKLOADS, contenders: gpu::contenders(&device)? })
    });
}
