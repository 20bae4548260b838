//! Markdown tables, and numbers as people read them.

/// A table: one heading a column, then rows.
pub fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(headings.iter().map(|h| h.to_string()).collect());
    text += &line(vec!["---".to_string(); headings.len()]);
    for row in rows {
        text += &line(row.iter().map(|cell| cell.replace('|', "\\|")).collect());
    }
    text
}

/// Text as code.
pub fn code(text: &str) -> String {
    format!("`{text}`")
}

/// A number: whole ones without a fraction, the special ones by name, others as short as an f32 can be told.
pub fn number(value: f64) -> String {
    let sign = if value.is_sign_negative() && !value.is_nan() { "−" } else { "" };
    match value.abs() {
        v if v.is_nan() => "NaN".to_string(),
        v if v.is_infinite() => format!("{sign}∞"),
        v if v.fract() == 0.0 && v < 1e10 => format!("{sign}{}", v as u64),
        v if !(1e-4..1e10).contains(&v) => format!("{sign}{:e}", v as f32),
        v => format!("{sign}{}", v as f32),
    }
}

/// `13181` as `13,181`.
pub fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).expect("digits")).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let all = [0.0, -0.0, 1.5, -2.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e22, 0.1f32 as f64];
        assert_eq!(all.map(number), ["0", "−0", "1.5", "−2", "NaN", "∞", "−∞", "1e22", "0.1"]);
        assert_eq!([5, 999, 1000, 13181].map(thousands), ["5", "999", "1,000", "13,181"]);
    }

    #[test]
    fn bars_in_cells_do_not_end_them() {
        assert_eq!(table(&["a"], [vec!["x | y".into()]]), "| a |\n| --- |\n| x \\| y |\n");
    }
}
