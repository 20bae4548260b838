//! `cargo xtask scaling`: what ranks cost, measured on this machine and in network namespaces, kept as lines in
//! `xtask/scaling/measured.txt`; and the page that is made of them, `docs/scaling.md`. Parts are measured one by one, so that each can
//! run on a machine that is quiet for a minute. Needs Linux and root.

use std::fs;
use std::process::Command;

use super::cost::{Algorithm, Link, Measured, StepCost};
use super::network::{Network, on_this_machine};
use super::{faults, install};
use crate::workspace::{cargo, read, root, succeed};

const KEPT: &str = "xtask/scaling/measured.txt";
const TEMPLATE: &str = "xtask/scaling/page.txt";
const PAGE: &str = "docs/scaling.md";
const PLOT: &str = "docs/scaling.svg";

/// Bits per second of the links that reductions are measured over.
const RATE: u64 = 400_000_000;
const SIZES: &str = "4 1024 8192 65536 1048576 2097152 4194304 8388608";
/// Layers of this width and so many of them are a model of 8.3 MB, a megabyte and a bucket each.
const MODEL: &str = "508 8";
/// A deeper one of 12.6 MB, a megabyte and a bucket a layer, too.
const DEEP: &str = "512 12";
const BUCKET_BYTES: usize = 1 << 20;

/// A part of what is measured, by name.
struct Part {
    name: &'static str,
    about: &'static str,
    measure: fn() -> Result<Vec<String>, String>,
}

const PARTS: &[Part] = &[
    Part { name: "loopback", about: "reductions over TCP of the loopback interface", measure: loopback },
    Part { name: "links", about: "reductions between namespaces, 400 Mbit/s", measure: links },
    Part {
        name: "deep",
        about: "30 steps with overlap and without it, in turns, twelve layers",
        measure: || matched(DEEP),
    },
    Part { name: "overlap", about: "the same with eight layers", measure: || matched(MODEL) },
    Part { name: "steps2", about: "steps that the cost model is checked against, two ranks", measure: steps2 },
    Part {
        name: "steps4",
        about: "the same with four ranks on two cores",
        measure: || overlap(MODEL, 400, 2048, 4, 8),
    },
    Part { name: "weak", about: "1, 2 and 4 ranks with the same batch each", measure: weak },
    Part { name: "alone", about: "one rank beside no MPI", measure: alone },
];

/// Measures the parts that are named; without a name, writes the page.
pub fn run(words: &[String]) -> Result<(), String> {
    if words.is_empty() {
        return write();
    }
    build()?;
    for word in words {
        let Some(part) = PARTS.iter().find(|part| part.name == word) else {
            let names: Vec<String> = PARTS.iter().map(|part| format!("  {:<9} {}", part.name, part.about)).collect();
            return Err(format!("there is no part `{word}`; there are:\n{}", names.join("\n")));
        };
        let lines: Vec<String> = (part.measure)()?.iter().map(|line| format!("{} {line}", part.name)).collect();
        println!("{}", lines.join("\n"));
        let others = read(KEPT).unwrap_or_default();
        let others = others.lines().filter(|line| line.split(' ').next() != Some(part.name)).map(String::from);
        let mut all: Vec<String> = others.chain(lines).collect();
        all.sort_by_key(|line| PARTS.iter().position(|part| line.split(' ').next() == Some(part.name)));
        fs::create_dir_all(root().join("xtask/scaling")).map_err(|e| e.to_string())?;
        fs::write(root().join(KEPT), all.join("\n") + "\n").map_err(|e| format!("{KEPT}: {e}"))?;
    }
    Ok(())
}

fn build() -> Result<(), String> {
    install()?;
    let words = ["build", "--release", "--example", "measure", "--manifest-path", "crates/lazuli-mpi/Cargo.toml"];
    succeed(Command::new(cargo()).args(words).args(["--no-default-features", "--target-dir", "target", "--quiet"]))
}

/// What the measuring program prints under `mpirun`, a thread a rank.
fn measured(mut mpirun: Command, words: &str) -> Result<Vec<String>, String> {
    mpirun.args(["-x", "LAZULI_THREADS", "-x", "LAZULI_MPI_TIMEOUT"]);
    mpirun.arg(root().join("target/release/examples/measure")).args(words.split(' '));
    let output =
        mpirun.env("LAZULI_THREADS", "1").env("LAZULI_MPI_TIMEOUT", "60").output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(format!("measure {words}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(String::from).collect())
}

fn loopback() -> Result<Vec<String>, String> {
    let reduce = |n: usize| measured(on_this_machine(n, Some("lo")), &format!("reduce 20 {SIZES}"));
    Ok([reduce(2)?, reduce(4)?].concat())
}

fn links() -> Result<Vec<String>, String> {
    let network = Network::new(4, Some(RATE))?;
    let reduce = |n: usize| measured(network.mpirun(n), &format!("reduce 10 {SIZES}"));
    Ok([reduce(2)?, reduce(4)?].concat())
}

/// Steps between namespaces of so many Mbit/s: a line of rate, ranks, batch, bytes and five medians.
fn overlap(model: &str, megabits: u64, batch: usize, n: usize, n_steps: usize) -> Result<Vec<String>, String> {
    let network = Network::new(n, Some(megabits * 1_000_000))?;
    let lines = measured(network.mpirun(n), &format!("overlap {model} {batch} {BUCKET_BYTES} {n_steps}"))?;
    let values: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    Ok(vec![format!("{megabits} {n} {batch} {}", values.join(" "))])
}

/// Shares of the time of computing that the wire takes where overlap is measured, all within a factor of two.
const RATIOS: [f64; 3] = [0.67, 1.0, 1.5];
/// All of it is measured so many times in a row, and every row is shown.
const N_RUNS: usize = 2;

/// The overlap of a batch of 2048 at rates at which the wire takes these shares of the time that a step computes, which is measured
/// first: conditions are set before overlap is looked at. Of two ranks each sends as many bytes as the model has.
fn matched(model: &str) -> Result<Vec<String>, String> {
    let batch = 2048;
    let mut lines = Vec::new();
    for _ in 0..N_RUNS {
        let network = Network::new(2, None)?;
        let computed = measured(network.mpirun(2), &format!("compute {model} {batch} 15"))?;
        let values: Vec<f64> = computed.iter().filter_map(|line| line.split(' ').nth(1)?.parse().ok()).collect();
        let [n_bytes, seconds] = values[..] else { return Err(format!("`compute` has two numbers, not {computed:?}")) };
        drop(network);
        for ratio in RATIOS {
            let megabits = (8e-6 * n_bytes / (ratio * seconds)).round() as u64;
            let line = overlap(model, megabits, batch, 2, 30)?.concat();
            let values: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            match values[..] {
                [.., compute, transfer, _] if compute.max(transfer) <= 2.0 * compute.min(transfer) => lines.push(line),
                _ => {
                    return Err(format!(
                        "the machine's speed has changed since rates were set ({line}): measure again"
                    ));
                }
            }
        }
    }
    Ok(lines)
}

fn steps2() -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    for (megabits, batch) in [(200, 4096), (400, 1024), (400, 2048), (800, 2048)] {
        lines.extend(overlap(MODEL, megabits, batch, 2, 8)?);
    }
    Ok(lines)
}

fn weak() -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    for n in [1, 2, 4] {
        lines.extend(measured(on_this_machine(n, None), &format!("weak {MODEL} 512 30"))?);
    }
    Ok(lines)
}

fn alone() -> Result<Vec<String>, String> {
    measured(on_this_machine(1, None), &format!("alone {MODEL} 256 100"))
}

/// The numbers of a part's lines.
fn numbers(kept: &str, part: &str) -> Result<Vec<Vec<f64>>, String> {
    let of = kept.lines().filter_map(|line| line.strip_prefix(part)?.strip_prefix(' '));
    let line = |line: &str| line.split(' ').filter_map(|word| word.parse::<f64>().ok()).collect::<Vec<f64>>();
    let lines: Vec<Vec<f64>> = of.map(line).collect();
    if lines.is_empty() { Err(format!("{KEPT} has no `{part}`: measure it first")) } else { Ok(lines) }
}

fn reductions(kept: &str, part: &str) -> Result<Vec<Measured>, String> {
    Ok(numbers(kept, part)?.iter().map(|line| (line[0] as usize, line[1], line[2])).collect())
}

/// A model for which steps are predicted: parameters, and the seconds that a rank computes.
const MODELS: [(&str, f64, f64); 3] = [
    ("ResNet-50, 32 images a rank", 25.6e6, 0.079),
    ("GPT-2 small, 8 × 1024 tokens a rank", 124e6, 0.61),
    ("a language model of 7 G parameters, 2048 tokens a rank", 6.7e9, 8.2),
];
/// Networks that are assumed: 100 Gbit/s, kernel TCP with latencies like those measured, and RDMA.
fn networks(fitted: &Link) -> [(&'static str, Link); 2] {
    let per_byte = 8.0 / 100e9;
    [("TCP", Link { per_byte, ..*fitted }), ("RDMA", Link { fixed: 10e-6, per_rank: 1e-6, per_byte })]
}
const PREDICTED_BUCKET: f64 = 25.0 * (1 << 20) as f64;

/// Writes the page and its plot.
fn write() -> Result<(), String> {
    let (page, plot) = made()?;
    fs::write(root().join(PLOT), plot).map_err(|e| format!("{PLOT}: {e}"))?;
    fs::write(root().join(PAGE), page).map_err(|e| format!("{PAGE}: {e}"))
}

/// The page and its plot, from what was measured: tables take the places that the template names.
fn made() -> Result<(String, String), String> {
    let kept = read(KEPT)?;
    let fit = |part: &str| -> Result<(Link, (f64, f64)), String> {
        let mut measured = reductions(&kept, part)?;
        // What the burst of a link's token bucket lets pass says nothing about its rate.
        measured.retain(|(_, n_bytes, _)| !(4096.0..1e6).contains(n_bytes));
        let link = Link::fit(&measured).ok_or("measurements that no link fits")?;
        Ok((link, link.error(&measured)))
    };
    let (loopback, links) = (fit("loopback")?, fit("links")?);
    let row = |name: &str, (link, error): &(Link, (f64, f64))| {
        let (fixed, per_rank, rate) = (1e6 * link.fixed, 1e6 * link.per_rank, 1e-6 / link.per_byte);
        let (median, most) = (100.0 * error.0, 100.0 * error.1);
        format!("| {name} | {fixed:.0} µs | {per_rank:.0} µs | {rate:.0} MB/s | {median:.0} % | {most:.0} % |")
    };
    let fitted = [row("loopback, TCP", &loopback), row("namespaces, 400 Mbit/s", &links)].join("\n");
    let (checked, error) = checked(&kept, &links.0)?;
    let page = read(TEMPLATE)?
        .replace("{fitted}", &fitted)
        .replace("{deep}", &overlapped(&kept, "deep")?)
        .replace("{overlap}", &overlapped(&kept, "overlap")?)
        .replace("{checked}", &checked)
        .replace("{error}", &error)
        .replace("{weak}", &weakly(&kept)?)
        .replace("{alone}", &beside(&kept)?)
        .replace("{faults}", &faults::table()?)
        .replace("{predicted}", &predicted(&links.0));
    Ok((page, plot(&links.0)))
}

fn overlapped(kept: &str, part: &str) -> Result<String, String> {
    let row = |line: &Vec<f64>| -> Result<String, String> {
        let [megabits, _, _, _, on, off, compute, transfer, hidden] = line[..] else {
            return Err(format!("`{part}` has nine numbers"));
        };
        let ms = |seconds: f64| format!("{:.0} ms", 1e3 * seconds);
        let cells = [ms(compute), ms(transfer), ms(off), ms(on), format!("{:.0} %", 100.0 * hidden)];
        Ok(format!("| {megabits} Mbit/s | {} |", cells.join(" | ")))
    };
    Ok(numbers(kept, part)?.iter().map(row).collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Measured steps beside predicted ones, and the median and largest error.
fn checked(kept: &str, links: &Link) -> Result<(String, String), String> {
    let mut rows = Vec::new();
    let mut errors = Vec::new();
    for line in ["steps2", "deep", "overlap", "steps4"]
        .iter()
        .map(|part| numbers(kept, part))
        .collect::<Result<Vec<_>, _>>()?
        .concat()
    {
        let [megabits, n, batch, n_bytes, on, off, compute, ..] = line[..] else {
            return Err("a step has nine numbers".into());
        };
        // Hosts take their part whatever the rate is.
        let host = links.per_byte - 8.0 / RATE as f64;
        let link = Link { per_byte: 8.0 / (megabits * 1e6) + host, ..*links };
        // A layer is a bucket, which its bias makes a little more or less than a megabyte.
        let n_buckets = (n_bytes / BUCKET_BYTES as f64).round();
        let step = StepCost { compute, n_bytes, bucket_bytes: n_bytes / n_buckets };
        let mut cells = Vec::new();
        for (seconds, overlaps) in [(off, false), (on, true)] {
            let predicted = step.seconds(&link, Algorithm::Exchange, n as usize, overlaps);
            errors.push((predicted / seconds - 1.0).abs());
            let percent = 100.0 * (predicted / seconds - 1.0);
            cells.push(format!("{:.0} ms | {:.0} ms | {percent:+.0} %", 1e3 * seconds, 1e3 * predicted));
        }
        let compute = 1e3 * compute;
        rows.push(format!("| {megabits} Mbit/s | {n} | {batch} | {compute:.0} ms | {} |", cells.join(" | ")));
    }
    errors.sort_by(f64::total_cmp);
    let (median, most) = (100.0 * errors[errors.len() / 2], 100.0 * errors[errors.len() - 1]);
    Ok((rows.join("\n"), format!("{median:.0} % in the median, {most:.0} % at most")))
}

fn weakly(kept: &str) -> Result<String, String> {
    let lines = numbers(kept, "weak")?;
    let first = lines.first().map_or(1.0, |line| line[1]);
    let row = |line: &Vec<f64>| {
        let (n, seconds, waited) = (line[0], line[1], line[2]);
        let (samples, efficiency) = (512.0 * n / seconds, 100.0 * first / seconds);
        let ms = 1e3 * seconds;
        format!("| {n} | {ms:.0} ms | {samples:.0} | {efficiency:.0} % | {:.0} % |", 100.0 * waited)
    };
    Ok(lines.iter().map(row).collect::<Vec<_>>().join("\n"))
}

fn beside(kept: &str) -> Result<String, String> {
    let lines = numbers(kept, "alone")?;
    let line = lines.first().filter(|line| line.len() == 2).ok_or("`alone` has two numbers")?;
    let (with, without) = (1e3 * line[0], 1e3 * line[1]);
    Ok(format!("{with:.2} ms on one rank and {without:.2} ms without MPI, {:+.1} %", 100.0 * (with / without - 1.0)))
}

fn predicted(fitted: &Link) -> String {
    let mut rows = Vec::new();
    for (name, n_parameters, compute) in MODELS {
        for (network, link) in networks(fitted) {
            let step = StepCost { compute, n_bytes: 4.0 * n_parameters, bucket_bytes: PREDICTED_BUCKET };
            let half = StepCost { n_bytes: 2.0 * n_parameters, bucket_bytes: PREDICTED_BUCKET / 2.0, ..step };
            let seconds = |step: &StepCost, algorithm| step.seconds(&link, algorithm, 1000, true);
            let efficiency = |seconds: f64| format!("{:.2} s ({:.0} %)", seconds, 100.0 * compute / seconds);
            let cells = [
                seconds(&step, Algorithm::Exchange),
                seconds(&half, Algorithm::Exchange),
                seconds(&step, Algorithm::Ring),
                seconds(&step, Algorithm::Tree),
            ];
            rows.push(format!("| {name} | {network} | {compute} s | {} |", cells.map(efficiency).join(" | ")));
        }
    }
    rows.join("\n")
}

/// Efficiency over the number of ranks, a line for each model and network.
fn plot(fitted: &Link) -> String {
    let (width, height, left, top) = (560.0, 300.0, 50.0, 20.0);
    let x = |n: f64| left + n.log10() / 3.0 * width;
    let y = |efficiency: f64| top + (1.0 - efficiency) * height;
    let mut out = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 380\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"860\" height=\"380\" fill=\"white\"/>\n",
    );
    for percent in [0, 25, 50, 75, 100] {
        let at = y(percent as f64 / 100.0);
        out += &format!(
            "<line x1=\"{left}\" x2=\"{:.0}\" y1=\"{at:.0}\" y2=\"{at:.0}\" stroke=\"#ddd\"/>\n",
            left + width
        );
        out += &format!("<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{percent} %</text>\n", left - 6.0, at + 4.0);
    }
    for n in [1, 10, 100, 1000] {
        out += &format!(
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{n}</text>\n",
            x(n as f64),
            top + height + 18.0
        );
    }
    out += &format!("<text x=\"{:.0}\" y=\"370\" text-anchor=\"middle\">ranks</text>\n", left + width / 2.0);
    let colours = ["#1f5fa8", "#b3541e", "#3a7d44"];
    let mut legend = top + 10.0;
    for ((name, n_parameters, compute), colour) in MODELS.iter().zip(colours) {
        for ((network, link), dashes) in networks(fitted).iter().zip(["5 4", "none"]) {
            let step = StepCost { compute: *compute, n_bytes: 4.0 * n_parameters, bucket_bytes: PREDICTED_BUCKET };
            let point = |i: usize| {
                let n = 10f64.powf(i as f64 / 20.0).round();
                let efficiency = compute / step.seconds(link, Algorithm::Exchange, n as usize, true);
                format!("{:.1},{:.1}", x(n), y(efficiency))
            };
            let points: Vec<String> = (0..=60).map(point).collect();
            let line = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"");
            out += &format!("<polyline points=\"{}\" {line}/>\n", points.join(" "));
            let short = name.split(',').next().unwrap_or(name);
            out += &format!("<line x1=\"625\" x2=\"655\" y1=\"{legend}\" y2=\"{legend}\" {line}/>\n");
            out += &format!("<text x=\"662\" y=\"{}\">{}</text>\n", legend + 4.0, legend_text(short, network));
            legend += 20.0;
        }
    }
    out + "</svg>\n"
}

fn legend_text(model: &str, network: &str) -> String {
    format!("{}, {network}", model.replace("a language model of 7 G parameters", "7 G parameters"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_was_measured() {
        let (page, plot) = made().expect("can be made");
        assert!(read(PAGE).expect("is there") == page, "docs/scaling.md: `cargo xtask scaling` writes it anew");
        assert!(read(PLOT).expect("is there") == plot, "docs/scaling.svg: `cargo xtask scaling` writes it anew");
    }
}
