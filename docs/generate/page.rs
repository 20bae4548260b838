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

/// A paragraph, in lines of at most 115 letters, as texts are written here.
pub fn paragraph(text: &str) -> String {
    const MOST: usize = 115;
    let (mut out, mut n_letters) = (String::new(), 0);
    for word in text.split_whitespace() {
        let n = word.chars().count();
        if n_letters > 0 {
            let fits = n_letters + 1 + n <= MOST;
            out.push(if fits { ' ' } else { '\n' });
            n_letters = if fits { n_letters + 1 } else { 0 };
        }
        out.push_str(word);
        n_letters += n;
    }
    out + "\n\n"
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
        v if !(1e-4..1e10).contains(&v) => format!("{sign}{:e}", v as f32).replace('-', "−"),
        v => format!("{sign}{}", v as f32),
    }
}

/// `13181` as `13,181`.
pub fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).expect("digits")).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let all = [0.0, -0.0, 1.5, -2.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e22, 1e-20, 0.1f32 as f64];
        assert_eq!(all.map(number), ["0", "−0", "1.5", "−2", "NaN", "∞", "−∞", "1e22", "1e−20", "0.1"]);
        assert_eq!([5, 999, 1000, 13181].map(thousands), ["5", "999", "1,000", "13,181"]);
    }

    #[test]
    fn paragraphs_are_broken_between_words() {
        let long = ["word"; 30].join(" ");
        assert_eq!(paragraph(&long), format!("{}\n{}\n\n", ["word"; 23].join(" "), ["word"; 7].join(" ")));
    }

    #[test]
    fn bars_in_cells_do_not_end_them() {
        assert_eq!(table(&["a"], [vec!["x | y".into()]]), "| a |\n| --- |\n| x \\| y |\n");
    }
}
