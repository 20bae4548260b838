//! Recurrent layers and losses with options, and their gradients, against values of PyTorch: see `tests/fixtures/torch`.

use lazuli::{DType, Tensor};
use lazuli_check::testing::device;
use lazuli_nn::loss::{
    CrossEntropy, LossOptions, Reduction, bce_with_logits_with, cross_entropy_with, huber_with, kl_with, l1_with,
    mse_with, nll_with,
};
use lazuli_nn::{Gru, Linear, Lstm, Rnn};

const TABLE: &str = include_str!("fixtures/torch/layers.txt");

/// What a result may differ by, relative to the largest number of the result or 1: a few roundings of f32.
const TOLERANCE: f32 = 4e-6;

/// One case of the table.
#[derive(Default)]
struct Case {
    name: &'static str,
    inputs: Vec<Tensor>,
    /// Weights and labels.
    fixed: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// What each element of an output counts for in the gradient.
    by: Vec<Tensor>,
    gradients: Vec<Tensor>,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in TABLE.lines() {
        if let Some(name) = line.strip_prefix("# ") {
            cases.push(Case { name, ..Case::default() });
            continue;
        }
        let mut words = line.split(' ');
        let (role, shape) = (words.next().unwrap(), words.next().unwrap());
        let shape: Vec<usize> =
            if shape == "-" { Vec::new() } else { shape.split(',').map(|n| n.parse().unwrap()).collect() };
        let values: Vec<f32> = words.map(|word| word.parse().unwrap()).collect();
        let case = cases.last_mut().expect("a name comes first");
        let of_role = match role {
            "in" => &mut case.inputs,
            "fixed" => &mut case.fixed,
            "out" => &mut case.outputs,
            "by" => &mut case.by,
            "grad" => &mut case.gradients,
            _ => panic!("{role} is no role"),
        };
        of_role.push(Tensor::from_vec(values, shape, &device()));
    }
    cases
}

#[track_caller]
fn check(name: &str, got: &[Tensor], want: &[Tensor]) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.shape().unwrap(), want.shape().unwrap(), "{name}, {i}");
        let (got, want) = (got.to_vec::<f32>().unwrap(), want.to_vec::<f32>().unwrap());
        let scale = want.iter().fold(1.0f32, |scale, v| scale.max(v.abs()));
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() <= TOLERANCE * scale, "{name}, {i}: {got}, not {want}");
        }
    }
}

/// What a case is in Lazuli.
fn run(case: &Case) -> Vec<Tensor> {
    let (x, fixed) = (&case.inputs, &case.fixed);
    let linear = |weight: usize, bias: Option<usize>| Linear {
        weight: x[weight].clone(),
        bias: bias.map(|bias| x[bias].clone()),
    };
    let mut words = case.name.split(' ');
    let (name, how, is_weighed) = (words.next().unwrap(), words.next().unwrap_or_default(), words.next().is_some());
    let reduction = match how {
        "sum" => Reduction::Sum,
        "none" => Reduction::None,
        _ => Reduction::Mean,
    };
    let options = LossOptions { weight: is_weighed.then(|| fixed[0].clone()), reduction };
    let labelled = |smoothing: f32| {
        (
            fixed[0].to_dtype(DType::I32),
            CrossEntropy { weight: Some(fixed[1].clone()), ignore_index: Some(-1), smoothing, reduction },
        )
    };
    match name {
        "rnn" => {
            let activation = if how == "relu" { Tensor::relu } else { Tensor::tanh };
            let (y, h) =
                Rnn { input: linear(1, Some(2)), hidden: linear(3, None), activation }.run(&x[0], Some(x[4].clone()));
            vec![y, h]
        }
        "lstm" => {
            let layer = Lstm { input: linear(1, Some(2)), hidden: linear(3, None) };
            let (y, (h, c)) = layer.run(&x[0], Some((x[4].clone(), x[5].clone())));
            vec![y, h, c]
        }
        "gru" => {
            let layer = Gru { input: linear(1, Some(2)), hidden: linear(3, Some(4)) };
            let (y, h) = layer.run(&x[0], Some(x[5].clone()));
            vec![y, h]
        }
        "mse" => vec![mse_with(&x[0], &x[1], &options)],
        "l1" => vec![l1_with(&x[0], &x[1], &options)],
        "huber" => vec![huber_with(&x[0], &x[1], 0.75, &options)],
        "bce" => vec![bce_with_logits_with(&x[0], &x[1], &options)],
        "kl" => vec![kl_with(&x[0], &x[1], &options)],
        "nll" => {
            let (labels, options) = labelled(0.0);
            vec![nll_with(&x[0], &labels, &options)]
        }
        "cross_entropy" => {
            let (labels, options) = labelled(0.1);
            vec![cross_entropy_with(&x[0], &labels, &options)]
        }
        _ => panic!("{name} has no call"),
    }
}

#[test]
fn recurrent_layers_and_losses_are_pytorchs() {
    let cases = cases();
    assert_eq!(cases.len(), 37);
    for case in &cases {
        let got = run(case);
        let sums = got.iter().zip(&case.by).map(|(y, by)| y.mul(by).sum(..));
        let loss = sums.reduce(|a, b| a.add(&b)).unwrap();
        let gradients = loss.grad(&case.inputs.iter().collect::<Vec<_>>());
        check(case.name, &got, &case.outputs);
        check(&format!("gradient of {}", case.name), &gradients, &case.gradients);
    }
}

#[test]
fn weights_that_do_not_broadcast_to_losses_are_an_error() {
    let x = Tensor::rand([2, 3], 1, &device());
    let options = LossOptions { weight: Some(Tensor::rand([2], 1, &device())), ..LossOptions::default() };
    let error = mse_with(&x, &x, &options).compute().unwrap_err().to_string();
    assert!(error.starts_with("mse: weights [2] do not broadcast to losses [2, 3]"), "{error}");
    assert!(error.contains("torch.rs"), "{error}");
}
