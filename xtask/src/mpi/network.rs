//! Hosts that are network namespaces of this machine, joined by a bridge, each with a link whose rate is set (`tc … tbf`). `mpirun`
//! starts its daemons in them through a script that stands in for ssh. Needs Linux, iproute2 and root.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{root, succeed};

/// Namespaces `lazuli1`, `lazuli2`, …; gone when dropped.
pub struct Network {
    n_hosts: usize,
    agent: PathBuf,
}

const BRIDGE: &str = "lazulibridge";

impl Network {
    /// So many hosts; what each sends has at most this rate, in bits per second, if there is one.
    pub fn new(n_hosts: usize, rate: Option<u64>) -> Result<Network, String> {
        let agent = root().join("target/mpi-agent.sh");
        let script = "#!/bin/sh\n# Stands in for ssh: the host's last number is its namespace.\n\
                      host=$1; shift; i=${host##*.}\n\
                      exec ip netns exec lazuli$i unshare --uts sh -c \"hostname lazuli$i; $*\"\n";
        fs::write(&agent, script).map_err(|e| format!("{}: {e}", agent.display()))?;
        succeed(Command::new("chmod").arg("+x").arg(&agent))?;
        let network = Network { n_hosts, agent };
        network.take_down();
        ip(&format!("link add {BRIDGE} type bridge"))?;
        ip(&format!("link set {BRIDGE} up"))?;
        for i in 1..=n_hosts {
            ip(&format!("netns add lazuli{i}"))?;
            ip(&format!("link add lazuliv{i} type veth peer name eth0 netns lazuli{i}"))?;
            ip(&format!("link set lazuliv{i} master {BRIDGE} up"))?;
            ip(&format!("-n lazuli{i} addr add 10.77.0.{i}/24 dev eth0"))?;
            ip(&format!("-n lazuli{i} link set eth0 up"))?;
            ip(&format!("-n lazuli{i} link set lo up"))?;
            if let Some(rate) = rate {
                let queue =
                    format!("-n lazuli{i} qdisc add dev eth0 root tbf rate {rate}bit burst 256kb latency 200ms");
                succeed(Command::new("tc").args(queue.split(' ')))?;
            }
        }
        Ok(network)
    }

    /// `mpirun` on the first host, with a rank on each of the first `n`.
    pub fn mpirun(&self, n: usize) -> Command {
        let hosts: Vec<String> = (1..=n).map(|i| format!("10.77.0.{i}")).collect();
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", "lazuli1", "unshare", "--uts", "sh", "-c", "hostname lazuli1; exec \"$@\"", "sh"])
            .args([
                "mpirun",
                "--allow-run-as-root",
                "-n",
                &n.to_string(),
                "--host",
                &hosts.join(","),
                "--bind-to",
                "none",
            ])
            .args(["--mca", "plm_rsh_agent"])
            .arg(&self.agent)
            .args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0"])
            .args(["--mca", "oob_tcp_if_include", "eth0"])
            // Otherwise the launcher's daemons notice a cut link after five minutes.
            .args(["--mca", "oob_tcp_keepalive_time", "3", "--mca", "oob_tcp_keepalive_intvl", "1"])
            .args(["--mca", "oob_tcp_keepalive_probes", "2"])
            .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
            .current_dir(root());
        command
    }

    /// Cuts the link of a host, counted from 1.
    pub fn cut(&self, host: usize) -> Result<(), String> {
        ip(&format!("-n lazuli{host} link set eth0 down"))
    }

    /// What is not there cannot be taken down, which is no error.
    fn take_down(&self) {
        for i in 1..=self.n_hosts {
            // A namespace goes when its last process has ended; its link goes at once.
            let _ = Command::new("ip").args(["link", "del", &format!("lazuliv{i}")]).output();
            let _ = Command::new("ip").args(["netns", "del", &format!("lazuli{i}")]).output();
        }
        let _ = Command::new("ip").args(["link", "del", BRIDGE]).output();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.take_down();
    }
}

fn ip(words: &str) -> Result<(), String> {
    succeed(Command::new("ip").args(words.split(' ')))
}

/// `mpirun` on this machine itself, over shared memory or, if `over` says so, over TCP of the loopback interface.
pub fn on_this_machine(n: usize, over: Option<&str>) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args(["--allow-run-as-root", "-n", &n.to_string(), "--oversubscribe", "--bind-to", "none"])
        .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
        .current_dir(root());
    if let Some(interface) = over {
        command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", interface]);
    }
    command
}
