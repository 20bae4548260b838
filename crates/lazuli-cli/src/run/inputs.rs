//! Files and JSON as the inputs that a model declares.

use std::path::Path;

use lazuli::{Device, Tensor};
use lazuli_onnx::{Declared, Dim, ElemType, Form, Model, Value};
use serde_json::Value as Json;

use super::{Options, picture};
use crate::sound::Sound;

/// A value for every input that was given one, in the order of the words; `notes` gets what was decided on the way.
pub fn read(model: &Model, options: &Options, notes: &mut Vec<String>) -> Result<Vec<(String, Value)>, String> {
    let mut given: Vec<(String, Value)> = Vec::new();
    for word in &options.inputs {
        let (name, source) = named(word, model);
        if name.is_none()
            && let Some(Json::Object(entries)) = json(source)?
        {
            for (name, json) in &entries {
                let input = find(model, name)?;
                give(&mut given, input, of_json(json, input, model.device())?)?;
            }
            continue;
        }
        let input = match name {
            Some(name) => find(model, name)?,
            None => next(model, &given)?,
        };
        let value = of_source(source, input, options, model.device(), notes)?;
        give(&mut given, input, value)?;
    }
    let missing: Vec<String> = without(model, &given).iter().map(|input| format!("`{input}`")).collect();
    match missing.is_empty() {
        true => Ok(given),
        false => Err(format!("the model wants {}: give it with --input NAME=FILE", missing.join(", "))),
    }
}

/// `NAME=SOURCE` apart; a file whose name has a `=` is a file, and so is JSON.
fn named<'w>(word: &'w str, model: &Model) -> (Option<&'w str>, &'w str) {
    let is_input = |name: &str| model.inputs().iter().any(|input| input.name == name);
    match word.split_once('=') {
        Some((name, source)) if is_input(name) || !Path::new(word).is_file() => (Some(name), source),
        _ => (None, word),
    }
}

fn find<'m>(model: &'m Model, name: &str) -> Result<&'m Declared, String> {
    let names = || model.inputs().iter().map(|input| format!("`{input}`")).collect::<Vec<_>>().join(", ");
    let found = model.inputs().iter().find(|input| input.name == name);
    found.ok_or_else(|| format!("there is no input `{name}`; the inputs are {}", names()))
}

/// The inputs that nothing was given for.
fn without<'m>(model: &'m Model, given: &[(String, Value)]) -> Vec<&'m Declared> {
    model.inputs().iter().filter(|input| given.iter().all(|(name, _)| *name != input.name)).collect()
}

fn next<'m>(model: &'m Model, given: &[(String, Value)]) -> Result<&'m Declared, String> {
    let n = model.inputs().len();
    without(model, given)
        .first()
        .copied()
        .ok_or_else(|| format!("the model has {n} inputs, and each was given already"))
}

fn give(given: &mut Vec<(String, Value)>, input: &Declared, value: Value) -> Result<(), String> {
    if given.iter().any(|(name, _)| *name == input.name) {
        return Err(format!("input `{}` is given twice", input.name));
    }
    given.push((input.name.clone(), value));
    Ok(())
}

/// What a .json file or a word of JSON holds; None if it is another file.
fn json(source: &str) -> Result<Option<Json>, String> {
    let path = Path::new(source);
    match (ending(path).as_str(), path.is_file()) {
        ("json", _) => {
            let text = std::fs::read_to_string(path).map_err(|e| format!("{source}: {e}"))?;
            serde_json::from_str(&text).map(Some).map_err(|e| format!("{source}: {e}"))
        }
        (_, true) => Ok(None),
        (_, false) => Ok(serde_json::from_str(source).ok()),
    }
}

fn ending(path: &Path) -> String {
    path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase()
}

fn of_source(
    source: &str,
    input: &Declared,
    options: &Options,
    device: &Device,
    notes: &mut Vec<String>,
) -> Result<Value, String> {
    if let Some(json) = json(source)? {
        return of_json(&json, input, device);
    }
    let path = Path::new(source);
    let tensor = match ending(path).as_str() {
        "npy" => lazuli_io::load_npy(path, device).map_err(|e| e.to_string())?,
        "png" => picture::input(path, input, &options.pixels, device, notes)?,
        "wav" => recording(path, input, options.rate, device, notes)?,
        _ => return Err(format!("`{source}` is neither JSON nor a file that ends with .npy, .png, .wav or .json")),
    };
    let Form::Tensor(elem) = input.form else { return Err(format!("`{input}` takes no single tensor")) };
    // Pictures and recordings are made in f32; arrays come as they are.
    let tensor = if ending(path) == "npy" { tensor } else { tensor.to_dtype(elem.storage()) };
    Value::new(&tensor, elem).map_err(|error| format!("input `{input}`: {}", error.fault().message))
}

/// A recording in the one axis of an input that is not 1.
fn recording(
    path: &Path,
    input: &Declared,
    rate: u32,
    device: &Device,
    notes: &mut Vec<String>,
) -> Result<Tensor, String> {
    let sound = Sound::load(path)?;
    let mut samples = sound.resampled(rate);
    if let Some(changes) = sound.changes(rate) {
        notes.push(format!("{}: {changes}", path.display()));
    }
    let n = samples.len();
    let dims = input.dims.as_deref().unwrap_or(&[Dim::Any]);
    // An axis of another fixed size than 1 is for the samples; else the last one that is open is, and the others are 1.
    let fixed = dims.iter().position(|dim| matches!(dim, Dim::Size(size) if *size > 1));
    let open = dims.iter().rposition(|dim| !matches!(dim, Dim::Size(_)));
    let along = fixed.or(open).ok_or_else(|| format!("`{input}` has no axis for {n} samples"))?;
    if let Dim::Size(size) = dims[along]
        && size != n
    {
        let what = if n > size { "only the first are taken" } else { "silence is added" };
        notes.push(format!("{}: {n} samples, where `{input}` has {size}: {what}", path.display()));
        samples.resize(size, 0.0);
    }
    let mut shape = vec![1; dims.len()];
    shape[along] = samples.len();
    Ok(Tensor::from_vec(samples, shape, device))
}

/// Nested lists of numbers or truth values as a tensor of the declared type.
fn of_json(json: &Json, input: &Declared, device: &Device) -> Result<Value, String> {
    let Form::Tensor(elem) = input.form else { return Err(format!("`{input}` takes no single tensor")) };
    let fault = |message: String| format!("input `{input}`: {message}");
    let (mut shape, mut at) = (Vec::new(), json);
    while let Json::Array(items) = at {
        shape.push(items.len());
        at = items.first().unwrap_or(&Json::Null);
    }
    let mut leaves = Vec::new();
    collect(json, &shape, &mut leaves).map_err(fault)?;
    let wrong = |leaf: &Json| fault(format!("{leaf} is no {elem}"));
    let engine = |error: lazuli::Error| fault(error.fault().message.clone());
    if elem.is_float() {
        let number = |leaf: &&Json| leaf.as_f64().ok_or_else(|| wrong(leaf));
        let numbers = leaves.iter().map(number).collect::<Result<Vec<f64>, _>>()?;
        let tensor = Tensor::from_vec(numbers, shape, device).to_dtype(elem.storage());
        return Value::new(&tensor, elem).map_err(engine);
    }
    let number = |leaf: &&Json| leaf.as_i64().or(leaf.as_bool().map(i64::from)).ok_or_else(|| wrong(leaf));
    let numbers = leaves.iter().map(number).collect::<Result<Vec<i64>, _>>()?;
    if elem == ElemType::I64 {
        return Value::from_i64s(&shape, numbers).map_err(engine);
    }
    let tensor = Tensor::from_slice(&numbers, shape, device).to_dtype(elem.storage());
    let value = Value::new(&tensor, elem).map_err(engine)?;
    // What does not fit has wrapped.
    let stored = value.to_i64s().map_err(engine)?;
    match numbers.iter().zip(&stored).find(|(number, stored)| number != stored) {
        Some((number, _)) => Err(fault(format!("{number} does not fit {elem}"))),
        None => Ok(value),
    }
}

/// The numbers of nested lists, which must all be as long as the first ones.
fn collect<'j>(json: &'j Json, shape: &[usize], leaves: &mut Vec<&'j Json>) -> Result<(), String> {
    match (json, shape) {
        (Json::Array(items), [n, inner @ ..]) if items.len() == *n => {
            items.iter().try_for_each(|item| collect(item, inner, leaves))
        }
        (Json::Array(items), [n, ..]) => Err(format!("a list of {} stands beside one of {n}", items.len())),
        (Json::Array(_), []) => Err("a list stands where others have a number".into()),
        (_, [_, ..]) => Err("a number stands where others have a list".into()),
        (leaf, []) => {
            leaves.push(leaf);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(elem: ElemType, dims: &[usize]) -> Declared {
        let dims = dims.iter().map(|n| if *n == 0 { Dim::Any } else { Dim::Size(*n) }).collect();
        Declared { name: "x".into(), form: Form::Tensor(elem), dims: Some(dims) }
    }

    #[test]
    fn nested_lists_are_tensors_of_the_declared_type() {
        let read = |text: &str, elem: ElemType| {
            let json: Json = serde_json::from_str(text).expect("it is JSON");
            of_json(&json, &declared(elem, &[]), &Device::cpu())
        };
        let check = |text: &str, elem: ElemType, shape: &[usize], numbers: &[f64]| {
            let value = read(text, elem).expect("it is right");
            assert_eq!((value.elem_type(), value.shape().expect("a tensor")), (Some(elem), shape.to_vec()), "{text}");
            assert_eq!(value.to_f64s().expect("numbers"), numbers, "{text}");
        };
        check("[[1, 2.5], [3, 4]]", ElemType::F32, &[2, 2], &[1.0, 2.5, 3.0, 4.0]);
        check("[1099511627776]", ElemType::I64, &[1], &[1099511627776.0]);
        check("[255, 0]", ElemType::U8, &[2], &[255.0, 0.0]);
        check("[true, false]", ElemType::Bool, &[2], &[1.0, 0.0]);
        check("7", ElemType::I32, &[], &[7.0]);
        let wrong = |text: &str, elem: ElemType, words: &str| {
            let error = read(text, elem).expect_err("it is wrong");
            assert!(error.contains(words), "{text}: {error}");
        };
        wrong("[[1], [2, 3]]", ElemType::F32, "a list of 2 stands beside one of 1");
        wrong("[1, [2]]", ElemType::F32, "a list stands where others have a number");
        wrong("[[1], 2]", ElemType::F32, "a number stands where others have a list");
        wrong("[\"a\"]", ElemType::F32, "\"a\" is no float");
        wrong("[300]", ElemType::U8, "300 does not fit uint8");
        wrong("[1.5]", ElemType::I64, "1.5 is no int64");
    }

    #[test]
    fn recordings_go_along_the_axis_that_is_for_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.wav");
        let head =
            b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\x04\0\0\0\0\x40\0\xc0";
        std::fs::write(&path, head).expect("is written");
        let check = |dims: &[usize], shape: &[usize], n_notes: usize| {
            let mut notes = Vec::new();
            let tensor = recording(&path, &declared(ElemType::F32, dims), 16_000, &Device::cpu(), &mut notes);
            assert_eq!(tensor.expect("it fits").shape().expect("a shape"), shape, "{dims:?}");
            assert_eq!(notes.len(), n_notes, "{notes:?}");
        };
        check(&[0], &[2], 0);
        check(&[0, 0], &[1, 2], 0);
        check(&[0, 2, 1], &[1, 2, 1], 0);
        check(&[1, 5], &[1, 5], 1);
        let none = recording(&path, &declared(ElemType::F32, &[1]), 16_000, &Device::cpu(), &mut Vec::new());
        assert!(none.is_err_and(|e| e.contains("no axis for 2 samples")));
    }
}
