//! Rows of the table of training steps, with ratios to the first contender.

/// One contender on one net. Times are per step.
#[derive(Clone, Debug)]
pub struct Row {
    pub net: String,
    pub contender: String,
    pub best_ms: f64,
    /// CPU time of all threads: what holds on a busy machine.
    pub best_cpu_ms: f64,
    /// The median of it.
    pub cpu_ms: f64,
    /// After ten steps.
    pub loss: f64,
    /// `ok`, `DIFFERS` (another loss than the first contender's) or `error: …`.
    pub verdict: String,
}

/// A Markdown table of the rows of one or more nets.
pub fn table(rows: &[Row]) -> String {
    let mut out =
        String::from("| net | contender | best ms | best CPU ms | median CPU ms | wall | CPU | loss | verdict |\n");
    out += "|---|---|---:|---:|---:|---:|---:|---:|---|\n";
    for row in rows {
        let first = rows.iter().find(|first| first.net == row.net).unwrap_or(row);
        out += &format!(
            "| {} | {} | {:.3} | {:.3} | {:.3} | {:.2}× | {:.2}× | {:.5} | {} |\n",
            row.net,
            row.contender,
            row.best_ms,
            row.best_cpu_ms,
            row.cpu_ms,
            row.best_ms / first.best_ms,
            row.best_cpu_ms / first.best_cpu_ms,
            row.loss,
            row.verdict
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_first_of_a_net() {
        let row = |contender: &str, ms: f64| Row {
            net: "mlp".into(),
            contender: contender.into(),
            best_ms: ms,
            best_cpu_ms: ms,
            cpu_ms: ms,
            loss: 1.0,
            verdict: "ok".into(),
        };
        assert!(table(&[row("a", 2.0), row("b", 3.0)]).contains("| mlp | b | 3.000 | 3.000 | 3.000 | 1.50× | 1.50× |"));
    }
}
