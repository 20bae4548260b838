//! Measures matrix products on a GPU beside hand-written WGSL and prints one table. See `--help`.

use std::time::Duration;

use lazuli::Device;
use lazuli_bench::contender::Result;
use lazuli_bench::gpu_matmul::{ALL, measure};
use lazuli_bench::measure::Effort;
use lazuli_bench::report::{Report, markdown, table, table_heading};

/// Short, so that on a busy machine some are not disturbed: the least CPU time counts.
const SAMPLE: Duration = Duration::from_millis(2);

const HELP: &str = "\
usage: gpu_matmul [options]
  --only TEXT      only products whose name contains TEXT (may be repeated)
  --device NAME    the device, as Device::open takes it (default: software)
  --rounds N       samples per contender (default 15)
  --markdown       print a Markdown table at the end
";

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let (mut only, mut name, mut n_rounds, mut wants_markdown) = (Vec::new(), "software".to_string(), 15, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value\n{HELP}"));
        match arg.as_str() {
            "--only" => only.push(value()?),
            "--device" => name = value()?,
            "--rounds" => n_rounds = value()?.parse::<usize>().map_err(|error| error.to_string())?.max(1),
            "--markdown" => wants_markdown = true,
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(());
            }
            _ => return Err(format!("{arg}: unknown option\n{HELP}")),
        }
    }
    let device = Device::open(&name).map_err(|error| error.to_string())?;
    let mut report =
        Report { processor: device.info().to_string(), n_threads: num_threads(), n_rounds, rows: Vec::new() };
    println!("{}\n{}", report.processor, table_heading());
    let wanted = |text: &str| only.is_empty() || only.iter().any(|o| text.contains(o.as_str()));
    for product in ALL.iter().filter(|product| wanted(product.name)) {
        let rows = measure(product, &device, Effort { n_rounds, sample: SAMPLE })?;
        println!("{}", table(&rows).trim_end());
        report.rows.extend(rows);
    }
    if wants_markdown {
        println!("\n{}", markdown(&report));
    }
    Ok(())
}

fn num_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
