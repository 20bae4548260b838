//! What a model gave: for people, or as JSON.

use std::io::Write;
use std::path::Path;

use lazuli::Device;
use lazuli_onnx::{Results, Value};
use serde_json::{Value as Json, json};

use super::Options;
use crate::Outcome;

/// Labels are read as a JSON list or as lines.
pub fn labels(path: &Path) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    if path.extension().is_some_and(|ending| ending == "json") {
        return serde_json::from_str(&text).map_err(|e| format!("{}: wants a list of texts: {e}", path.display()));
    }
    Ok(text.lines().map(String::from).collect())
}

/// Prints every output.
pub fn write(
    results: &Results,
    labels: Option<&[String]>,
    options: &Options,
    device: &Device,
    out: &mut dyn Write,
) -> Outcome {
    // With labels only outputs that they fit are shortened.
    let top = options.top.or(labels.map(|_| 5));
    let is_ranked = |shape: &[usize]| match (shape.last(), labels) {
        (Some(n), Some(labels)) => *n == labels.len(),
        (Some(n), None) => *n > 1,
        (None, _) => false,
    };
    let names: Vec<String> = results.names().map(String::from).collect();
    let mut shapes = Vec::new();
    let mut listed = Vec::new();
    for name in &names {
        let value = results.value(name)?;
        let Some(elem) = value.elem_type() else {
            listed.push(json!({ "name": name, "value": format!("{value:?}") }));
            if !options.is_json {
                writeln!(out, "{name}: {value:?}")?;
            }
            continue;
        };
        let shape = value.shape()?;
        let ranked = top.filter(|_| is_ranked(&shape)).map(|n| ranked(value, &shape, n)).transpose()?;
        if options.is_json {
            let mut entry = json!({ "name": name, "type": elem.to_string(), "shape": shape });
            match &ranked {
                Some(rows) => entry["top"] = rows.iter().map(|row| row_as_json(row, labels)).collect(),
                None => entry["data"] = numbers_as_json(value)?,
            }
            listed.push(entry);
        } else {
            writeln!(out, "{name}: {elem}{shape:?}")?;
            match ranked {
                Some(rows) => rows.iter().try_for_each(|row| write_row(row, labels, out))?,
                None => writeln!(out, "{}", shown(value, device)?)?,
            }
        }
        shapes.push(shape);
    }
    if let Some(labels) = labels.filter(|_| !shapes.iter().any(|shape| is_ranked(shape))) {
        let n = labels.len();
        return Err(format!("{n} labels fit no output: the last axes of {shapes:?} have other sizes").into());
    }
    if options.is_json {
        writeln!(out, "{}", json!({ "outputs": listed }))?;
    }
    Ok(())
}

/// Of every line along the last axis the `n` largest numbers with their places, largest first.
fn ranked(value: &Value, shape: &[usize], n: usize) -> lazuli::Result<Vec<Vec<(usize, f64)>>> {
    let numbers = value.to_f64s()?;
    let line = |line: &[f64]| {
        let mut places: Vec<(usize, f64)> = line.iter().copied().enumerate().collect();
        // The first of equals comes first; NaN last.
        places
            .sort_by(|a, b| (a.1.is_nan(), -a.1, a.0).partial_cmp(&(b.1.is_nan(), -b.1, b.0)).unwrap_or(a.0.cmp(&b.0)));
        places.truncate(n);
        places
    };
    let len = shape.last().copied().unwrap_or(1).max(1);
    Ok(numbers.chunks(len).map(line).collect())
}

fn row_as_json(row: &[(usize, f64)], labels: Option<&[String]>) -> Json {
    let entry = |(at, number): &(usize, f64)| match labels.and_then(|labels| labels.get(*at)) {
        Some(label) => json!({ "index": at, "label": label, "value": number }),
        None => json!({ "index": at, "value": number }),
    };
    row.iter().map(entry).collect()
}

fn write_row(row: &[(usize, f64)], labels: Option<&[String]>, out: &mut dyn Write) -> std::io::Result<()> {
    for (at, number) in row {
        match labels.and_then(|labels| labels.get(*at)) {
            Some(label) => writeln!(out, "  {number:>12.6}  {at:>6}  {label}")?,
            None => writeln!(out, "  {number:>12.6}  {at:>6}")?,
        }
    }
    if row.is_empty() { Ok(()) } else { writeln!(out) }
}

/// Elements in row-major order: floats as numbers, integers as integers.
fn numbers_as_json(value: &Value) -> lazuli::Result<Json> {
    let is_float = value.elem_type().is_some_and(|elem| elem.is_float());
    Ok(if is_float { json!(value.to_f64s()?) } else { json!(value.to_i64s()?) })
}

/// As NumPy prints arrays. Integers beyond 32 bits, which no tensor holds, are a list.
fn shown(value: &Value, device: &Device) -> lazuli::Result<String> {
    match value.to_tensor(device) {
        Ok(tensor) => {
            tensor.compute()?;
            Ok(tensor.to_string())
        }
        Err(_) => Ok(format!("{:?}", value.to_i64s()?)),
    }
}
