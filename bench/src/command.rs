//! What the benchmark programs have in common: options, rounds, tables. A program brings its workloads and contenders.

use std::time::Duration;

use crate::contender::{Contender, Result};
use crate::hand;
use crate::inputs::inputs_of;
use crate::measure::{Effort, Runner, run_in_turns};
use crate::reference::{compare, reference};
use crate::report::{Report, Row, Yardsticks, judge, markdown, table, table_heading};
use crate::workload::Workload;

const HELP: &str = "\
  --only TEXT      only workloads whose name contains TEXT; the yardsticks always run (may be repeated)
  --by NAME        only this contender (may be repeated)
  --rounds N       samples per contender (default 15)
  --threads N      threads for everyone (default 2)
  --lanes N        the hand-written loops use vectors of at most N values (16, 8 or 4)
  --device NAME    the GPU, as for Device::open (default software); for the program `gpu`
  --json FILE      write the results to FILE
  --from FILE      measure nothing; print the results in FILE
  --markdown       print a Markdown table instead of plain text
";

/// What was asked for.
pub struct Options {
    pub only: Vec<String>,
    pub by: Vec<String>,
    pub n_rounds: usize,
    pub n_threads: usize,
    pub device: String,
    pub json: Option<String>,
    pub from: Option<String>,
    pub markdown: bool,
}

/// What a program measures: who takes part in what, and on what machine or device.
pub struct Field {
    pub place: String,
    pub workloads: &'static [Workload],
    pub contenders: Vec<Box<dyn Contender>>,
}

/// Runs a program and ends the process with an error if it fails. `field` is not asked if nothing is to be measured.
pub fn main(program: &str, field: impl FnOnce(&Options) -> Result<Field>) {
    if let Err(error) = Options::parse(program).and_then(|options| run(&options, field)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run(options: &Options, field: impl FnOnce(&Options) -> Result<Field>) -> Result<()> {
    let report = match &options.from {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
            serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?
        }
        None => {
            limit_threads(options.n_threads)?;
            measure_all(options, field(options)?)
        }
    };
    if options.markdown {
        println!("{}", markdown(&report));
    } else if options.from.is_some() {
        println!("{}{}", table_heading(), table(&report.rows));
    }
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        std::fs::write(path, text + "\n").map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

fn measure_all(options: &Options, field: Field) -> Report {
    let Field { place, workloads, mut contenders } = field;
    contenders.retain(|contender| options.wants_by(contender.name()));
    let mut yardsticks = Yardsticks::default();
    let mut report =
        Report { processor: place, n_threads: options.n_threads, n_rounds: options.n_rounds, rows: Vec::new() };
    options.print(&format!("{}, {} threads", report.processor, report.n_threads));
    options.print(&table_heading());
    for workload in workloads.iter().filter(|workload| options.wants(workload)) {
        let mut rows = measure(workload, &contenders, options);
        judge(&mut rows, yardsticks);
        if workload.work.is_yardstick() {
            yardsticks.note(&rows[0], options.n_threads);
        }
        options.print(table(&rows).trim_end());
        report.rows.extend(rows);
    }
    report
}

/// All contenders on one workload, in turns; inputs and outputs are freed afterwards.
fn measure(workload: &Workload, contenders: &[Box<dyn Contender>], options: &Options) -> Vec<Row> {
    let work = workload.work;
    let inputs = inputs_of(work);
    let prepared = contenders.iter().map(|contender| (contender.name(), contender.prepare(work, &inputs)));
    let mut runners: Vec<Runner> = prepared.filter_map(|(name, case)| Some(Runner::new(name, case?))).collect();
    run_in_turns(&mut runners, Effort { n_rounds: options.n_rounds, sample: Duration::from_millis(2) });
    let right = reference(work, &inputs);
    let row = |runner: Runner| {
        let contender = runner.contender;
        let outcome = runner.finish();
        let outcome = outcome.map(|(timing, result)| (timing, compare(&result, &right, work.tolerance())));
        Row::new(workload.name, contender, work.limit(options.n_threads), outcome)
    };
    runners.into_iter().map(row).collect()
}

/// Tells every library how many threads it may use; none may have started yet.
fn limit_threads(n_threads: usize) -> Result<()> {
    for variable in ["RAYON_NUM_THREADS", "LAZULI_THREADS"] {
        // SAFETY: the process still has one thread.
        unsafe { std::env::set_var(variable, n_threads.to_string()) };
    }
    rayon::ThreadPoolBuilder::new().num_threads(n_threads).build_global().map_err(|error| error.to_string())
}

/// The processor's name where the system tells it.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(": ")).map_or("unknown processor", |(_, name)| name);
    name.trim().into()
}

impl Options {
    /// The first, what is written by hand, is always wanted: the others are compared with it.
    fn wants_by(&self, contender: &str) -> bool {
        self.by.is_empty() || contender == "hand" || self.by.iter().any(|name| contender == name)
    }

    fn wants(&self, workload: &Workload) -> bool {
        self.only.is_empty()
            || workload.work.is_yardstick()
            || self.only.iter().any(|text| workload.name.contains(text.as_str()))
    }

    /// With --markdown the plain table goes to stderr, as progress.
    pub fn print(&self, text: &str) {
        if self.markdown { eprintln!("{text}") } else { println!("{text}") }
    }

    fn parse(program: &str) -> Result<Options> {
        let help = format!("usage: {program} [options]\n{HELP}");
        let mut options = Options {
            only: Vec::new(),
            by: Vec::new(),
            n_rounds: 15,
            n_threads: 2,
            device: "software".into(),
            json: None,
            from: None,
            markdown: false,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value\n{help}"));
            let count = |text: String| match text.parse() {
                Ok(n) if n > 0 => Ok(n),
                _ => Err(format!("{text}: not a positive number")),
            };
            match arg.as_str() {
                "--only" => options.only.push(value()?),
                "--by" => options.by.push(value()?),
                "--rounds" => options.n_rounds = count(value()?)?,
                "--threads" => options.n_threads = count(value()?)?,
                "--lanes" => hand::use_at_most_lanes(count(value()?)?),
                "--device" => options.device = value()?,
                "--json" => options.json = Some(value()?),
                "--from" => options.from = Some(value()?),
                "--markdown" => options.markdown = true,
                "--help" | "-h" => {
                    print!("{help}");
                    std::process::exit(0);
                }
                _ => return Err(format!("{arg}: unknown option\n{help}")),
            }
        }
        Ok(options)
    }
}
