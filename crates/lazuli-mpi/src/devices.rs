//! Which device a rank takes, and with how many threads it computes on a CPU that it shares. Knows kinds of devices, cores and
//! the local rank; nothing about MPI.

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

/// The cores that this process may run on: their number, and which they are where the system says so.
pub fn cores() -> String {
    let n = std::thread::available_parallelism().map_or(1, usize::from);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).unwrap_or_default();
    format!("{n} {}", mask.trim())
}

/// The threads of a rank: its part of the cores that it shares with other ranks of its host, one at least.
pub fn n_threads(rank: usize, hosts: &[String], cores: &[String]) -> usize {
    let own = (&hosts[rank], &cores[rank]);
    let n_sharing = hosts.iter().zip(cores).filter(|other| *other == own).count();
    let n_cores = cores[rank].split(' ').next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(1);
    (n_cores / n_sharing).max(1)
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

    #[test]
    fn ranks_on_the_same_cores_share_them() {
        let check = |hosts: &[&str], cores: &[&str], expect: &[usize]| {
            let own = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
            let got: Vec<usize> = (0..hosts.len()).map(|rank| n_threads(rank, &own(hosts), &own(cores))).collect();
            assert_eq!(got, expect, "{cores:?}");
        };
        // Not bound: 16 cores among three; bound: each its own; two hosts; more ranks than cores.
        check(&["a", "a", "a"], &["16 ffff", "16 ffff", "16 ffff"], &[5, 5, 5]);
        check(&["a", "a"], &["4 f", "4 f0"], &[4, 4]);
        check(&["a", "b", "b"], &["8 ff", "8 ff", "8 ff"], &[8, 4, 4]);
        check(&["a"; 4], &["2 3"; 4], &[1, 1, 1, 1]);
        let n = cores().split(' ').next().and_then(|n| n.parse::<usize>().ok());
        assert_eq!(n, std::thread::available_parallelism().ok().map(usize::from));
    }
}
