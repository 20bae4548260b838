//! A wrong kernel is planted among the forms, and found.

use std::rc::Rc;
use std::sync::Arc;

use lazuli::{CustomOp, DType, Tensor};
use lazuli_check::{Array, Cell, Op, Program};

use super::*;

/// `2·x`, as a custom op whose shader may say something else.
#[derive(Debug)]
struct Doubled {
    wgsl: &'static str,
}

/// The numbers 0 to 99.
#[derive(Debug)]
struct Counted;

impl Op for Counted {
    fn expect(&self, _: &[&Array]) -> Array {
        Array::new(vec![100], DType::F32, (0..100).map(|i| Cell::point(i as f64)).collect())
    }

    fn call(&self, _: &[&Tensor], device: &Device) -> Tensor {
        Tensor::from_vec((0..100).map(|i| i as f32).collect(), [100], device)
    }

    fn text(&self, _: &[&str]) -> String {
        "Tensor::arange(0.0, 100.0, 1.0, &cpu)".into()
    }
}

impl Op for Doubled {
    fn expect(&self, inputs: &[&Array]) -> Array {
        let doubled = |c: &Cell| Cell::point(2.0 * c.lo);
        Array::new(inputs[0].shape.clone(), DType::F32, inputs[0].cells.iter().map(doubled).collect())
    }

    fn call(&self, inputs: &[&Tensor], _: &Device) -> Tensor {
        let (name, wgsl) = ("doubled".into(), self.wgsl.into());
        Tensor::map_custom(&CustomOp { name, wgsl, cpu: Arc::new(|x| 2.0 * x[0]), grad: None }, inputs)
    }

    fn text(&self, inputs: &[&str]) -> String {
        format!("{}.mul(2.0)", inputs[0])
    }
}

/// A form with one program: counted numbers, doubled by this shader.
fn doubled(name: &'static str, wgsl: &'static str) -> Form {
    Form::new(name, move || {
        let mut program = Program::default();
        let x = program.push(Rc::new(Counted), Vec::new());
        let y = program.push(Rc::new(Doubled { wgsl }), vec![x]);
        program.outputs.push(y);
        vec![program]
    })
}

fn examined(device: &Device, forms: Vec<Form>) -> Report {
    let report = Mutex::new(Report::new([DeviceReport::new("0", device)].into_iter()));
    examine(device, &forms, false, &ProgressBar::hidden(), |change| change(&mut locked(&report).devices[0]));
    let mut report = locked(&report).clone();
    report.is_whole = true;
    report
}

#[test]
fn a_wrong_shader_is_found_on_a_gpu_and_not_on_the_cpu() {
    let forms = || vec![doubled("right", "($0 * 2.0)"), doubled("planted", "select($0 * 2.0, 7.0, $0 == 41.0)")];
    let gpu = Device::open("software").expect("tests have a GPU, if only one that runs on the CPU");
    let report = examined(&gpu, forms());
    assert_eq!((report.n_failures(), report.failing().len()), (1, 1), "{report}");
    let text = report.to_string();
    assert!(text.contains("2 checks on 1 device, 1 FAILED"), "{text}");
    assert!(text.contains("Forms of kernels: 1 of 2 passed") && text.contains("FAILED: planted"), "{text}");
    assert!(text.contains("element 41 of t1 is 7e0, not 8.2e1 to 8.2e1"), "{text}");
    let json = report.json().to_string();
    assert!(json.contains(r#"{"form":"planted","passed":false,"#), "{json}");
    assert!(json.contains(r#"{"form":"right","passed":true,"cases":1,"elements":100,"#), "{json}");

    let report = examined(&Device::cpu(), forms());
    assert_eq!(report.n_failures(), 0, "{report}");
}

/// What the command prints for these forms on a device, and how it ends: an error is exit status 1.
fn ran(options: &Options, forms: Vec<Form>) -> (String, Result<(), String>) {
    let mut out = Vec::new();
    let outcome = examine_all(options, forms, channel(), &mut out).map_err(|error| error.to_string());
    (String::from_utf8(out).expect("a report is text"), outcome)
}

#[test]
fn a_form_that_fails_ends_the_command_with_an_error() {
    let on = |device: &str| Options { device: Some(device.into()), only: Some("doubled".into()), ..Options::default() };
    let forms = || vec![doubled("right", "($0 * 2.0)"), doubled("planted", "$0")];
    let (text, outcome) = ran(&on("software"), forms());
    let gpu = Device::open("software").expect("tests have a GPU");
    let name = &gpu.info().name;
    assert_eq!(outcome, Err(format!("1 failure on {name}")), "{text}");
    assert!(text.contains("2 checks on 1 device, 1 FAILED\n") && text.contains("FAILED: planted"), "{text}");
    let (text, outcome) = ran(&on("cpu"), forms());
    assert_eq!(outcome, Ok(()), "{text}");
    assert!(text.contains("2 checks on 1 device, all passed\n"), "{text}");
}

#[test]
fn a_device_that_cannot_be_opened_ends_the_command_with_an_error() {
    let options = Options { device: Some("abacus".into()), ..Options::default() };
    let (text, outcome) = ran(&options, Vec::new());
    assert!(text.is_empty() && outcome.expect_err("there is none").contains("no device is called \"abacus\""));
}

#[test]
fn what_is_interrupted_says_so() {
    let (ended, end) = channel();
    ended.send(Ended::Interrupted).expect("somebody listens");
    let options = Options { device: Some("cpu".into()), only: Some("doubled".into()), ..Options::default() };
    let mut out = Vec::new();
    let forms = vec![doubled("right", "($0 * 2.0)")];
    examine_all(&options, forms, (ended, end), &mut out).expect("nothing failed");
    let text = String::from_utf8(out).expect("a report is text");
    assert!(text.lines().next().is_some_and(|line| line.ends_with("; interrupted")), "{text}");
    let mut report = examined(&Device::cpu(), vec![doubled("right", "($0 * 2.0)")]);
    report.is_whole = false;
    report.devices[0].seconds = None;
    let text = report.to_string();
    assert!(text.contains("interrupted") && text.contains("1 of 1 passed"), "{text}");
    assert!(report.json().to_string().contains("\"whole\":false"));
}

#[track_caller]
fn check(words: &str, expect: Result<Options, &str>) {
    let got = Options::parse(words.split_whitespace().map(String::from));
    assert_eq!(got, expect.map_err(String::from), "{words}");
}

#[test]
fn options_are_a_device_forms_and_where_to_write() {
    check("", Ok(Options::default()));
    check(
        "--device gpu --only=product --json --output report.json",
        Ok(Options {
            device: Some("gpu".into()),
            only: Some("product".into()),
            json: true,
            output: Some("report.json".into()),
        }),
    );
    check("--jason", Err("there is no option `--jason`; did you mean `--json`?"));
    check("--json=1", Err("--json takes no value, not `1` either"));
    check("--output", Err("--output wants a value, such as `--output report.txt`"));
    let nothing = Options { only: Some("teapot".into()), ..Options::default() };
    let message = nothing.forms().expect_err("there is no such form");
    assert!(message.starts_with("no form has `teapot` in its name; there are: elementwise, f32; "), "{message}");
}
