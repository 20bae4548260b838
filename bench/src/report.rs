//! Judging and printing: rows with rates, ratios and verdicts, as a table, Markdown or JSON.
//! `python/cpu_peers.py` reads and writes the same JSON.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::contender::Result;
use crate::measure::{Timing, median};
use crate::reference::Difference;
use crate::workload::Limit;

/// Everything one run found out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub processor: String,
    pub n_threads: usize,
    pub n_rounds: usize,
    pub rows: Vec<Row>,
}

/// One contender on one workload. A field that does not apply is absent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub workload: String,
    pub contender: String,
    pub best_ms: Option<f64>,
    pub median_ms: Option<f64>,
    pub cpu_ms: Option<f64>,
    /// Bytes that must move over the best time.
    pub gb_per_s: Option<f64>,
    /// Floating-point operations over the best time.
    pub gflop_per_s: Option<f64>,
    /// Best time over the hand-written loop's best time.
    pub ratio_to_hand: Option<f64>,
    /// CPU time over the hand-written loop's in the same round, the median of all rounds: what slows a processor down for
    /// a while slows both.
    pub cpu_ratio_to_hand: Option<f64>,
    /// The CPU time of each round, if they were those of everyone.
    #[serde(skip)]
    pub cpu_rounds: Vec<f64>,
    pub max_abs_diff: Option<f64>,
    pub max_rel_diff: Option<f64>,
    /// `ok`, `WRONG`, `IMPOSSIBLE`, or `error: …`.
    pub verdict: String,
}

/// A rate above this many times its yardstick means that the clock stopped before the work did.
/// Reading from a large cache is honestly faster than copying through memory, hence the room.
const BANDWIDTH_HEADROOM: f64 = 3.0;
/// What has fewer bytes may lie in a cache as a whole, which is faster still.
const CACHE_BYTES: f64 = 32e6;
const CACHE_HEADROOM: f64 = 12.0;
/// Arithmetic has no such excuse, but clocks may rise between two workloads.
const ARITHMETIC_HEADROOM: f64 = 1.5;

/// What the machine showed itself capable of in the same run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Yardsticks {
    pub copy_gb_per_s: Option<f64>,
    pub peak_gflop_per_s: Option<f64>,
}

impl Yardsticks {
    /// Takes the rate of a yardstick's row. Others may have had the processor meanwhile, so the
    /// rate over CPU time counts if it is higher.
    pub fn note(&mut self, row: &Row, n_threads: usize) {
        let (Some(best_ms), Some(cpu_ms)) = (row.best_ms, row.cpu_ms) else { return };
        let undisturbed = (best_ms * n_threads as f64 / cpu_ms).max(1.0);
        let raise = |rate: f64| if undisturbed.is_finite() { rate * undisturbed } else { rate };
        self.copy_gb_per_s = self.copy_gb_per_s.or(row.gb_per_s.map(raise));
        self.peak_gflop_per_s = self.peak_gflop_per_s.or(row.gflop_per_s.map(raise));
    }
}

impl Row {
    /// A row out of what was measured, or of what went wrong. Ratios and verdicts against
    /// yardsticks come later, in [`judge`].
    pub fn new(workload: &str, contender: &str, limit: Limit, outcome: Result<(Timing, Difference)>) -> Row {
        let mut row = Row {
            workload: workload.into(),
            contender: contender.into(),
            best_ms: None,
            median_ms: None,
            cpu_ms: None,
            gb_per_s: None,
            gflop_per_s: None,
            ratio_to_hand: None,
            cpu_ratio_to_hand: None,
            cpu_rounds: Vec::new(),
            max_abs_diff: None,
            max_rel_diff: None,
            verdict: "ok".into(),
        };
        let (timing, difference) = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                row.verdict = format!("error: {error}");
                return row;
            }
        };
        let per_second = |amount: usize| Some(amount as f64 / timing.best_ms / 1e6);
        match limit {
            Limit::Bandwidth { bytes } => row.gb_per_s = per_second(bytes),
            Limit::Arithmetic { flops } => row.gflop_per_s = per_second(flops),
            Limit::Overhead => {}
        }
        row.best_ms = Some(timing.best_ms);
        row.median_ms = Some(timing.median_ms);
        row.cpu_ms = Some(timing.cpu_ms);
        row.cpu_rounds = timing.cpu_rounds;
        row.max_abs_diff = Some(difference.max_abs);
        row.max_rel_diff = Some(difference.max_rel);
        if !difference.is_right {
            row.verdict = "WRONG".into();
        }
        row
    }
}

/// Adds ratios to the hand-written loop and refuses what is faster than the hardware.
/// `rows` are all of one workload.
pub fn judge(rows: &mut [Row], yardsticks: Yardsticks) {
    let hand = rows.iter().find(|row| row.contender == "hand");
    let hand_ms = hand.and_then(|row| row.best_ms);
    let hand_cpu_rounds = hand.map_or_else(Vec::new, |row| row.cpu_rounds.clone());
    for row in rows {
        row.ratio_to_hand = row.best_ms.zip(hand_ms).map(|(best, hand)| best / hand);
        let ratios: Vec<f64> = row.cpu_rounds.iter().zip(&hand_cpu_rounds).map(|(cpu, hand)| cpu / hand).collect();
        row.cpu_ratio_to_hand = (!ratios.is_empty()).then(|| median(ratios));
        let exceeds = |rate: Option<f64>, yardstick: Option<f64>, headroom: f64| {
            rate.zip(yardstick).is_some_and(|(rate, yardstick)| rate > yardstick * headroom)
        };
        let bytes = row.gb_per_s.zip(row.best_ms).map_or(0.0, |(rate, ms)| rate * ms * 1e6);
        let bandwidth_headroom = if bytes <= CACHE_BYTES { CACHE_HEADROOM } else { BANDWIDTH_HEADROOM };
        if row.verdict == "ok"
            && (exceeds(row.gb_per_s, yardsticks.copy_gb_per_s, bandwidth_headroom)
                || exceeds(row.gflop_per_s, yardsticks.peak_gflop_per_s, ARITHMETIC_HEADROOM))
        {
            row.verdict = "IMPOSSIBLE".into();
        }
    }
}

/// The column heads, the same in both tables.
const HEADS: [&str; 10] = [
    "workload",
    "contender",
    "best ms",
    "median ms",
    "CPU ms",
    "rate",
    "to hand",
    "CPU to hand",
    "max abs diff",
    "verdict",
];

/// Lines of text with aligned columns; a blank line goes before each workload.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    let mut previous = "";
    for row in rows {
        if row.workload != previous {
            previous = &row.workload;
            out.push('\n');
        }
        out.push_str(&line(cells(row)));
        out.push('\n');
    }
    out
}

/// The heading line that belongs over [`table`].
pub fn table_heading() -> String {
    line(HEADS.map(String::from))
}

fn line(cells: [String; HEADS.len()]) -> String {
    let [workload, contender, best, median, cpu, rate, ratio, cpu_ratio, diff, verdict] = cells;
    format!(
        "{workload:<24} {contender:<15} {best:>9} {median:>9} {cpu:>9} {rate:>11} {ratio:>8} {cpu_ratio:>11} {diff:>12}  {verdict}"
    )
}

/// The same as a Markdown table, preceded by one line on how it was made.
pub fn markdown(report: &Report) -> String {
    let mut out = format!(
        "{}, {} threads, f32; best and median of {} interleaved rounds, CPU time of the whole process per call.\n\n",
        report.processor, report.n_threads, report.n_rounds
    );
    let _ = writeln!(out, "| {} |", HEADS.join(" | "));
    let _ = writeln!(out, "|---|---|{}---|", "---:|".repeat(HEADS.len() - 3));
    for row in &report.rows {
        let _ = writeln!(out, "| {} |", cells(row).join(" | "));
    }
    out
}

fn cells(row: &Row) -> [String; HEADS.len()] {
    let rate = match (row.gb_per_s, row.gflop_per_s) {
        (Some(rate), _) => format!("{rate:.1} GB/s"),
        (_, Some(rate)) => format!("{rate:.0} GFLOP/s"),
        _ => String::new(),
    };
    let diff = row.max_abs_diff.filter(|diff| diff.is_finite()).map(|diff| format!("{diff:.1e}"));
    [
        row.workload.clone(),
        row.contender.clone(),
        milliseconds(row.best_ms),
        milliseconds(row.median_ms),
        milliseconds(row.cpu_ms),
        rate,
        times(row.ratio_to_hand),
        times(row.cpu_ratio_to_hand),
        diff.unwrap_or_default(),
        row.verdict.clone(),
    ]
}

fn times(ratio: Option<f64>) -> String {
    ratio.map(|ratio| format!("{ratio:.2}×")).unwrap_or_default()
}

/// Three significant digits or so, whatever the size.
fn milliseconds(ms: Option<f64>) -> String {
    match ms {
        None => String::new(),
        Some(ms) if ms >= 100.0 => format!("{ms:.0}"),
        Some(ms) if ms >= 1.0 => format!("{ms:.2}"),
        Some(ms) if ms >= 0.01 => format!("{ms:.3}"),
        Some(ms) => format!("{ms:.6}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(contender: &str, best_ms: f64) -> Row {
        row_of(20_000_000, contender, best_ms)
    }

    fn row_of(bytes: usize, contender: &str, best_ms: f64) -> Row {
        let timing = Timing { best_ms, median_ms: best_ms, cpu_ms: best_ms, cpu_rounds: vec![best_ms] };
        let right = Difference { is_right: true, ..Difference::default() };
        Row::new("sum", contender, Limit::Bandwidth { bytes }, Ok((timing, right)))
    }

    #[test]
    fn faster_than_the_hardware_is_refused() {
        let mut rows = [row_of(200_000_000, "hand", 10.0), row_of(200_000_000, "peer", 1.0)];
        judge(&mut rows, Yardsticks { copy_gb_per_s: Some(20.0), peak_gflop_per_s: None });
        assert_eq!([&*rows[0].verdict, &*rows[1].verdict], ["ok", "IMPOSSIBLE"]);
        assert_eq!(rows[1].ratio_to_hand, Some(0.1));
        // What fits into a cache may be read ten times as fast, not twenty.
        let mut rows = [row("one", 0.1), row("other", 0.05)];
        judge(&mut rows, Yardsticks { copy_gb_per_s: Some(20.0), peak_gflop_per_s: None });
        assert_eq!([&*rows[0].verdict, &*rows[1].verdict], ["ok", "IMPOSSIBLE"]);
    }

    #[test]
    fn a_yardstick_disturbed_by_others_counts_its_cpu_time() {
        // 20 MB in 4 ms, but only 2 ms of CPU time over two threads: 20 GB/s when left alone.
        let mut disturbed = row("hand", 4.0);
        disturbed.cpu_ms = Some(2.0);
        let mut yardsticks = Yardsticks::default();
        yardsticks.note(&disturbed, 2);
        assert_eq!(yardsticks.copy_gb_per_s, Some(20.0));
    }
}
