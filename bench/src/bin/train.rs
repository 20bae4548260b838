//! Measures training steps of all contenders in one run and prints one table. See `--help`.

use lazuli_bench::contender::Result;
use lazuli_bench::train::turns::{Effort, measure};
use lazuli_bench::train::{Net, locals, report};

const HELP: &str = "\
usage: train [options]
  --only TEXT      only nets whose name contains TEXT
  --by TEXT        only contenders of this process whose name contains TEXT (may be repeated)
  --rounds N       samples per contender (default 15)
  --threads N      threads for everyone (default 2)
  --device NAME    where Lazuli runs (default cpu; others need the feature `gpu`)
  --peers COMMAND  starts a process with more contenders, who take turns with the others (may be repeated):
                   \"python3 python/train_peers.py\", \"node js/train_peers.mjs\"
";

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let mut effort = Effort { n_rounds: 15, n_threads: 2, device: "cpu".into(), peers: Vec::new() };
    let (mut only, mut by) = (String::new(), Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--help" || arg == "-h" {
            print!("{HELP}");
            return Ok(());
        }
        let value = args.next().ok_or(format!("{arg} needs a value\n{HELP}"))?;
        let count = || value.parse().map_err(|_| format!("{value}: not a number"));
        match arg.as_str() {
            "--only" => only = value,
            "--by" => by.push(value),
            "--rounds" => effort.n_rounds = count()?,
            "--threads" => effort.n_threads = count()?,
            "--device" => effort.device = value,
            "--peers" => effort.peers.push(value),
            _ => return Err(format!("{arg}: unknown option\n{HELP}")),
        }
    }
    for variable in ["RAYON_NUM_THREADS", "LAZULI_THREADS", "OMP_NUM_THREADS"] {
        // SAFETY: the process still has one thread.
        unsafe { std::env::set_var(variable, effort.n_threads.to_string()) };
    }
    let mut locals = locals();
    locals.retain(|(name, _)| by.is_empty() || by.iter().any(|text| name.contains(text.as_str())));
    let mut rows = Vec::new();
    for net in Net::ALL.into_iter().filter(|net| net.name().contains(only.as_str())) {
        rows.extend(measure(net, &locals, &effort)?);
    }
    print!("{}", report::table(&rows));
    Ok(())
}
