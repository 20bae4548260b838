//! A step that cannot be made changes nothing: neither what is known to be wrong before anything runs, nor what is found
//! out on the way. On the CPU or on what `LAZULI_TEST_DEVICE` names.

use std::sync::Arc;

use lazuli::{CustomOp, DType, Device, Error, Tensor};
use lazuli_check::testing::{alone, device};
use lazuli_nn::*;

/// Words that become vectors, are normalised over the batch, and are told apart.
struct Model {
    words: Embedding,
    norm: BatchNorm,
    out: Linear,
}
module!(Model { words, norm, out });

const WORDS: usize = 50;
const CLASSES: usize = 7;
const BATCH: usize = 16;

impl Model {
    fn new(device: &Device) -> Model {
        Model {
            words: Embedding::new(WORDS, 12, 1, device),
            norm: BatchNorm::new(12, device),
            out: Linear::new(12, CLASSES, 2, device),
        }
    }

    fn logits(&self, words: &Tensor) -> Tensor {
        self.out.forward(&self.norm.forward(&self.words.forward(words)).relu())
    }

    fn loss(&self, (words, labels): &(Tensor, Tensor)) -> Tensor {
        // Labels are looked up: the losses of this crate compare them instead, and never fail.
        self.logits(words).log_softmax(-1).gather(1, &labels.unsqueeze(-1)).mean(..).neg()
    }
}

/// Every bit of a model.
fn bits(model: &mut impl Module) -> Vec<(String, Vec<u32>)> {
    let read = |t: &Tensor| t.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    named(model).iter().map(|(name, t)| (name.clone(), read(t))).collect()
}

/// Every bit of an optimizer.
fn state(optimizer: &Optimizer) -> Vec<(String, Vec<u32>)> {
    let read = |t: &Tensor| match t.dtype().unwrap() {
        DType::U32 => t.to_vec::<u32>().unwrap(),
        _ => t.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect(),
    };
    optimizer.named(&device()).iter().map(|(name, t)| (name.clone(), read(t))).collect()
}

fn batch(i: usize) -> (Tensor, Tensor) {
    let at = |of: usize| (0..BATCH).map(|k| ((i * 31 + k * 17 + k * k) % of) as i32).collect::<Vec<i32>>();
    (Tensor::from_vec(at(WORDS), [BATCH], &device()), Tensor::from_vec(at(CLASSES), [BATCH], &device()))
}

fn bad_word(i: usize) -> (Tensor, Tensor) {
    let mut words = batch(i).0.to_vec::<i32>().unwrap();
    words[BATCH - 1] = WORDS as i32;
    (Tensor::from_vec(words, [BATCH], &device()), batch(i).1)
}

fn bad_label(i: usize) -> (Tensor, Tensor) {
    let mut labels = batch(i).1.to_vec::<i32>().unwrap();
    labels[3] = -1;
    (batch(i).0, Tensor::from_vec(labels, [BATCH], &device()))
}

fn rules() -> Vec<Optimizer> {
    vec![
        Optimizer::new(Sgd::default(), 0.1),
        Optimizer::new(Sgd { momentum: 0.9, nesterov: true, ..Sgd::default() }, 0.1),
        Optimizer::new(Adam::default(), 1e-2),
        Optimizer::new(AdamW::default(), 1e-2).clipped(Clip::Norm(1.0)),
        Optimizer::new(Lion::default(), 1e-3),
    ]
}

#[test]
fn a_loss_that_is_refused_changes_nothing() {
    let _device = alone();
    let cpu = device();
    let losses: [(&str, fn(&Model) -> Tensor); 4] = [
        ("two numbers", |m| m.out.weight.narrow(0, 0, 2).sum(1)),
        ("an integer", |m| m.out.weight.sum(..).to_dtype(DType::I32)),
        ("an error", |m| m.out.weight.matmul(&m.out.weight).sum(..)),
        ("history gone", |m| {
            let op = CustomOp { name: "flat".into(), wgsl: "$0".into(), cpu: Arc::new(|x: &[f32]| x[0]), grad: None };
            Tensor::map_custom(&op, &[&m.out.weight]).sum(..)
        }),
    ];
    for (what, refused) in losses {
        for mut optimizer in rules() {
            let mut model = Model::new(&cpu);
            // Before the first step, and after it.
            for i in 0..2 {
                let (before, was) = (bits(&mut model), state(&optimizer));
                let loss = refused(&model);
                assert!(optimizer.step(&mut model, loss).is_err(), "{what}");
                let loss = refused(&model);
                assert!(optimizer.accumulate(&mut model, loss).is_err(), "{what}");
                assert_eq!((bits(&mut model), state(&optimizer)), (before, was), "{what}");
                assert_eq!(optimizer.n_steps(), i);
                let loss = model.loss(&batch(0));
                optimizer.step(&mut model, loss).unwrap();
            }
        }
    }
}

#[test]
fn a_model_with_other_parameters_is_refused_and_changes_nothing() {
    let _device = alone();
    let cpu = device();
    for mut optimizer in rules() {
        let mut model = Model::new(&cpu);
        let loss = model.loss(&batch(0));
        optimizer.step(&mut model, loss).unwrap();
        let was = state(&optimizer);
        let mut other = Linear::new(3, 2, 1, &cpu);
        let before = bits(&mut other);
        let loss = other.forward(&Tensor::ones([4, 3], DType::F32, &cpu)).sum(..);
        let error = optimizer.step(&mut other, loss).map(drop).unwrap_err().to_string();
        assert!(error.contains("the model has 2 parameters, the optimizer knows 5"), "{error}");
        assert_eq!((bits(&mut other), state(&optimizer)), (before, was));
    }
}

#[test]
fn sums_survive_a_loss_that_is_refused() {
    let _device = alone();
    let cpu = device();
    let run = |refused: bool| {
        let (mut model, mut optimizer) = (Model::new(&cpu), Optimizer::new(Adam::default(), 1e-2));
        for i in 0..3 {
            let loss = model.loss(&batch(i));
            optimizer.accumulate(&mut model, loss).unwrap();
            if refused {
                let loss = model.out.weight.sum(0);
                assert!(optimizer.accumulate(&mut model, loss).is_err());
            }
        }
        optimizer.apply(&mut model).unwrap();
        (bits(&mut model), state(&optimizer))
    };
    assert_eq!(run(true), run(false));
}

/// Trains on good batches, with bad ones in between or without; what is left of model and optimizer.
fn train(mut optimizer: Optimizer, bad: impl Fn(usize) -> Option<(Tensor, Tensor)>) -> Vec<(String, Vec<u32>)> {
    let mut model = Model::new(&device());
    for i in 0..6 {
        if let Some(bad) = bad(i) {
            let before = bits(&mut model);
            let loss = model.loss(&bad);
            let error = optimizer.step(&mut model, loss).and_then(|loss| loss.item::<f32>()).unwrap_err();
            assert!(matches!(error, Error::Index(_)), "{error}");
            assert_eq!(bits(&mut model), before);
        }
        let loss = model.loss(&batch(i));
        let loss = optimizer.step(&mut model, loss).unwrap().item::<f32>().unwrap();
        assert!(loss.is_finite());
    }
    let mut left = bits(&mut model);
    left.extend(state(&optimizer));
    left
}

#[test]
fn a_batch_with_an_index_out_of_range_is_as_if_it_was_never_there() {
    let _device = alone();
    for (optimizer, (word, label)) in rules().into_iter().zip(rules().into_iter().zip(rules())) {
        let good = train(optimizer, |_| None);
        assert_eq!(train(word, |i| (i != 3).then(|| bad_word(i))), good, "words");
        assert_eq!(train(label, |i| (i != 2).then(|| bad_label(i))), good, "labels");
    }
}

#[test]
fn a_label_that_is_no_class_leaves_its_row_out() {
    let _device = alone();
    let (mut model, mut optimizer) = (Model::new(&device()), Optimizer::new(Adam::default(), 1e-2));
    for i in 0..4 {
        let (words, labels) = if i % 2 == 0 { batch(i) } else { bad_label(i) };
        let loss = loss::cross_entropy(&model.logits(&words), &labels);
        let loss = optimizer.step(&mut model, loss).unwrap().item::<f32>().unwrap();
        assert_eq!(loss.is_nan(), i % 2 == 1, "{loss}");
        assert!(bits(&mut model).iter().flat_map(|(_, w)| w).all(|w| f32::from_bits(*w).is_finite()));
    }
}

#[test]
fn bad_batches_are_left_out_of_sums() {
    let _device = alone();
    let run = |bad: bool| {
        let (mut model, mut optimizer) = (Model::new(&device()), Optimizer::new(Adam::default(), 1e-2));
        for round in 0..3 {
            for i in 0..3 {
                if bad {
                    for (words, labels) in [bad_word(i), bad_label(i)] {
                        let loss = model.loss(&(words, labels));
                        let loss = optimizer.accumulate(&mut model, loss);
                        assert!(matches!(loss.and_then(|l| l.item::<f32>()), Err(Error::Index(_))));
                    }
                }
                let loss = model.loss(&batch(round * 3 + i));
                optimizer.accumulate(&mut model, loss).unwrap();
            }
            optimizer.apply(&mut model).unwrap();
        }
        (bits(&mut model), state(&optimizer))
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_step_with_nothing_but_bad_sums_changes_nothing() {
    let _device = alone();
    let (mut model, mut optimizer) = (Model::new(&device()), Optimizer::new(Adam::default(), 1e-2));
    let loss = model.loss(&batch(0));
    optimizer.step(&mut model, loss).unwrap();
    let before = (bits(&mut model), state(&optimizer));
    let loss = model.loss(&bad_label(1));
    assert!(optimizer.accumulate(&mut model, loss).and_then(|l| l.item::<f32>()).is_err());
    optimizer.apply(&mut model).unwrap();
    assert_eq!((bits(&mut model), state(&optimizer)), before);
}

#[test]
fn in_steady_state_bad_batches_compile_and_allocate_nothing() {
    let _device = alone();
    let device = device();
    let (mut model, mut optimizer) = (Model::new(&device), Optimizer::new(Adam::default(), 1e-2));
    // On the device before they are counted.
    let batches: Vec<(Tensor, Tensor)> = [batch(0), bad_word(1), batch(2), bad_label(3)].into();
    for i in 0..24 {
        device.reset_stats();
        let loss = model.loss(&batches[i % 4]);
        let read = optimizer.step(&mut model, loss).and_then(|loss| loss.item::<f32>());
        assert_eq!(read.is_ok(), i % 2 == 0, "step {i}: {read:?}");
        let stats = device.stats();
        assert_eq!(stats.submits, 1, "step {i}");
        if i >= 12 {
            let made = (stats.plans_compiled, stats.pipelines_compiled, stats.buffers_created);
            assert_eq!(made, (0, 0, 0), "step {i}: {stats:?}");
        }
    }
}

#[test]
fn a_custom_op_that_panics_leaves_the_model_as_it_was() {
    let _device = alone();
    // On GPUs custom ops are shaders, which do not panic.
    let cpu = Device::cpu();
    let op = |bad: bool| CustomOp {
        name: "touchy".into(),
        wgsl: "$0".into(),
        cpu: Arc::new(move |x: &[f32]| if bad { panic!("touched") } else { x[0] }),
        grad: Some(Arc::new(|_, _, g| vec![g.clone()])),
    };
    let run = |bad: bool| {
        let (mut model, mut optimizer) = (Linear::new(4, 3, 1, &cpu), Optimizer::new(Adam::default(), 1e-2));
        for i in 0..4 {
            let x = Tensor::rand([8, 4], i, &cpu).compute().unwrap();
            if bad {
                let before = bits(&mut model);
                let loss = Tensor::map_custom(&op(true), &[&model.forward(&x)]).square().mean(..);
                assert!(matches!(optimizer.step(&mut model, loss), Err(Error::Custom(_))));
                assert_eq!(bits(&mut model), before);
            }
            let loss = Tensor::map_custom(&op(false), &[&model.forward(&x)]).square().mean(..);
            optimizer.step(&mut model, loss).unwrap();
        }
        (bits(&mut model), state(&optimizer))
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_loss_too_large_for_any_memory_leaves_the_model_as_it_was() {
    let _device = alone();
    let device = device();
    let (mut model, mut optimizer) = (Model::new(&device), Optimizer::new(Adam::default(), 1e-2));
    let loss = model.loss(&batch(0));
    optimizer.step(&mut model, loss).unwrap();
    let before = (bits(&mut model), state(&optimizer));
    let huge = Tensor::rand([1 << 21, 1 << 21], 1, &device);
    let loss = model.loss(&batch(1));
    let error = optimizer.step_with(&mut model, loss, vec![huge]).map(drop).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    assert_eq!((bits(&mut model), state(&optimizer)), before);
    let loss = model.loss(&batch(1));
    assert!(optimizer.step(&mut model, loss).unwrap().item::<f32>().unwrap().is_finite());
}
