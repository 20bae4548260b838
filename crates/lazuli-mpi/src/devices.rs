//! Which device a rank takes. Knows kinds of devices and the local rank; nothing about MPI.

use lazuli::{Device, DeviceKind, Result};

/// The device of a local rank, unless `LAZULI_DEVICE` names one.
#[track_caller]
pub fn device(local_rank: usize) -> Result<Device> {
    match std::env::var("LAZULI_DEVICE") {
        Ok(name) if !name.trim().is_empty() => Device::open(&name),
        _ => {
            let kinds: Vec<DeviceKind> = Device::all().iter().map(|info| info.kind).collect();
            Device::open(&choose(local_rank, &kinds).to_string())
        }
    }
}

/// Cards first, then what shares the CPU's memory; a driver that runs on the CPU is never taken, the CPU itself is better.
fn choose(local_rank: usize, kinds: &[DeviceKind]) -> usize {
    let of =
        |wanted: &[DeviceKind]| -> Vec<usize> { (0..kinds.len()).filter(|i| wanted.contains(&kinds[*i])).collect() };
    let cards = of(&[DeviceKind::Discrete]);
    let gpus = if cards.is_empty() { of(&[DeviceKind::Integrated, DeviceKind::Virtual]) } else { cards };
    if gpus.is_empty() { 0 } else { gpus[local_rank % gpus.len()] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DeviceKind::{Cpu, Discrete, Integrated, Software};

    #[test]
    fn local_rank_n_takes_gpu_n() {
        let machine = [Cpu, Integrated, Discrete, Discrete, Software];
        assert_eq!([0, 1, 2].map(|rank| choose(rank, &machine)), [2, 3, 2]);
        assert_eq!([0, 1].map(|rank| choose(rank, &[Cpu, Integrated, Software])), [1, 1]);
        assert_eq!([0, 1].map(|rank| choose(rank, &[Cpu, Software])), [0, 0]);
    }
}
