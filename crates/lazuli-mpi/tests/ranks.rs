//! What holds on several ranks. Each test starts itself under `mpirun` with other numbers of ranks; what is asserted there
//! fails the rank, and with it the job. Nothing is timed: deadlines are generous, and tests take turns.

mod job;

use std::process::Command;

use job::*;
use lazuli::{DType, Device, Tensor};
use lazuli_mpi::{Distributed, Reduce, Wire, World};
use lazuli_nn::data::{Dataset, Loader};
use lazuli_nn::{Adam, Clip, Linear, Optimizer, Relu, Sequential, parameters};

#[test]
fn collectives_give_what_they_say() {
    holds("collectives_give_what_they_say", &[1, 2, 3, 4], |world| {
        let (rank, n) = (world.rank() as f32, world.size() as f32);
        let cpu = Device::cpu();
        assert_eq!(world.hosts().len(), world.size());
        assert!(world.local_rank() < world.local_size());
        let x = Tensor::from_vec((0..7).map(|i| i as f32 + rank).collect(), [7], &cpu);
        let sum = world.all_reduce(&x, Reduce::Sum)?.to_vec::<f32>()?;
        let ranks: f32 = n * (n - 1.0) / 2.0;
        assert_eq!(sum, (0..7).map(|i| n * i as f32 + ranks).collect::<Vec<_>>());
        assert_eq!(world.all_reduce(&x.to_dtype(DType::I32), Reduce::Max)?.to_vec::<i32>()?[0], n as i32 - 1);
        let half = world.all_reduce(&x.to_dtype(DType::BF16), Reduce::Sum)?;
        assert_eq!((half.dtype()?, half.to_dtype(DType::F32).to_vec::<f32>()?), (DType::BF16, sum));
        // Fewer elements than ranks, and none.
        for n_elems in [2, 1, 0] {
            let few = world.all_reduce(&Tensor::ones([n_elems], DType::F32, &cpu), Reduce::Sum)?;
            assert_eq!(few.to_vec::<f32>()?, vec![n; n_elems]);
        }
        assert_eq!(world.all_gather(&Tensor::ones([0, 3], DType::F32, &cpu))?.shape()?, [0, 3]);
        let own = if world.rank() == 0 { vec![7, 8] } else { Vec::new() };
        assert_eq!(world.broadcast_bytes(own)?, [7, 8]);
        let rows = Tensor::full([world.rank() + 1, 2], rank, &cpu);
        let all = world.all_gather(&rows)?;
        assert_eq!(all.shape()?, [world.size() * (world.size() + 1) / 2, 2]);
        assert_eq!(all.to_vec::<f32>()?.last(), Some(&(n - 1.0)));
        let parts = world.reduce_scatter(&Tensor::ones([2 * world.size(), 3], DType::F32, &cpu), Reduce::Sum)?;
        assert_eq!((parts.shape()?, parts.to_vec::<f32>()?), (&[2, 3][..], vec![n; 6]));
        world.barrier()?;
        Ok(())
    });
}

#[test]
fn large_reductions_go_in_many_rounds() {
    holds("large_reductions_go_in_many_rounds", &[1, 2, 3], |world| {
        let (rank, n, cpu) = (world.rank() as i32, world.size() as i32, Device::cpu());
        // A round has 60 KB for each rank, and 16 are under way at once.
        let n_elems: i32 = 1_000_003;
        let x = Tensor::from_vec((0..n_elems).map(|i| i % 1000 + rank).collect(), [n_elems as usize], &cpu);
        let ranks = n * (n - 1) / 2;
        let sum = world.all_reduce(&x, Reduce::Sum)?.to_vec::<i32>()?;
        assert!(sum.iter().zip(0..).all(|(sum, i): (&i32, i32)| *sum == n * (i % 1000) + ranks));
        let rows = x.narrow(0, 0, 996_996).reshape([996, 1001]);
        let own = world.reduce_scatter(&rows, Reduce::Sum)?.to_vec::<i32>()?;
        let start = world.rank() * (996 / world.size()) * 1001;
        assert!(own == sum[start..start + own.len()], "chunks belong to ranks in order");
        // Several buckets at once, of several rounds each, with what follows them in line.
        let mut model: Sequential =
            (0..6).fold(Sequential::new(), |model, i| model.push(Linear::new(300, 300, i, &cpu)));
        let loss = |model: &mut Sequential| {
            let weights = parameters(model).into_iter().zip(1..);
            weights.fold(Tensor::scalar(0.0, &cpu), |sum, ((_, w), i)| sum.add(w.mul((i * (rank + 1)) as f32).sum(..)))
        };
        for (wire, bytes) in [(Wire::F32, 1 << 20), (Wire::Bf16, 1 << 20), (Wire::F32, 1 << 10)] {
            let mut many = Distributed::new(optimizer(false), world).wire(wire).buckets(bytes);
            let own = loss(&mut model);
            let grads = many.gradients(&mut model, &own, 1)?;
            world.barrier()?;
            for (grad, i) in grads.iter().zip(1..) {
                let mean = (i * (n + 1)) as f32 / 2.0;
                assert!(grad.to_vec::<f32>()?.iter().all(|g| *g == mean), "gradient {i} is {mean}, {wire:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn the_reduced_gradient_is_that_of_the_whole_batch() {
    holds("the_reduced_gradient_is_that_of_the_whole_batch", &[2, 3, 4], |world| {
        for (make, shape) in [(mlp as fn(u64) -> Sequential, &[20][..]), (cnn, &[1, 8, 8])] {
            // 23 examples do not divide, and 3 are fewer than there may be ranks.
            for n in [24, 23, 3] {
                let mut model = make(world.rank() as u64);
                world.broadcast(&mut model)?;
                let mut many = Distributed::new(optimizer(false), world).buckets(512);
                let (from, to) = part(world, n);
                let own = loss_of(&model, shape, 1, from, to);
                let reduced = flat(&many.gradients(&mut model, &own, to - from)?)?;
                let whole = loss_of(&model, shape, 1, 0, n);
                let alone = flat(&optimizer(false).gradients(&mut model, &whole)?)?;
                let far = apart(&reduced, &alone);
                assert!(far < 1e-6, "{far:e} with {n} examples");
            }
        }
        Ok(())
    });
}

#[test]
fn losses_are_those_of_one_rank() {
    holds("losses_are_those_of_one_rank", &[2, 4], |world| {
        for (make, shape) in [(mlp as fn(u64) -> Sequential, &[20][..]), (cnn, &[1, 8, 8])] {
            for (adam, clip) in
                [(false, None), (true, None), (true, Some(Clip::Norm(0.1))), (false, Some(Clip::Value(0.01)))]
            {
                let clipped = |o: Optimizer| match clip {
                    Some(clip) => o.clipped(clip),
                    None => o,
                };
                let (mut model, mut alone) = (make(5), make(5));
                let mut many = Distributed::new(clipped(optimizer(adam)), world);
                let mut one = clipped(optimizer(adam));
                for batch in 0..10 {
                    let (from, to) = part(world, 22);
                    let whole = loss_of(&model, shape, batch, 0, 22).detach().item::<f32>()?;
                    let own = loss_of(&model, shape, batch, from, to);
                    many.step_of(&mut model, own, to - from, Vec::new())?;
                    let expect = loss_of(&alone, shape, batch, 0, 22);
                    let expect = one.step(&mut alone, expect)?.item::<f32>()?;
                    assert!((whole - expect).abs() < 1e-5, "step {batch}: {whole} and {expect}, {clip:?}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn all_ranks_have_the_same_bits_and_so_have_two_runs() {
    let test = "all_ranks_have_the_same_bits_and_so_have_two_runs";
    let program = |world: &World| {
        let run = |wire, buckets| -> Result<Vec<f32>, lazuli::Error> {
            let mut model = mlp(3);
            let mut many = Distributed::new(optimizer(true), world).wire(wire).buckets(buckets);
            for batch in 0..5 {
                let (from, to) = part(world, 16);
                let own = loss_of(&model, &[20], batch, from, to);
                many.step_of(&mut model, own, to - from, Vec::new())?;
            }
            flat(&parameters(&mut model).into_iter().map(|(_, w)| w).collect::<Vec<_>>())
        };
        let first = run(Wire::F32, 1 << 20)?;
        assert_eq!(first, run(Wire::F32, 1 << 20)?);
        // Sums go by rank, whatever the buckets.
        assert_eq!(first, run(Wire::F32, 256)?);
        let half = run(Wire::Bf16, 1 << 20)?;
        assert_eq!(half, run(Wire::Bf16, 256)?);
        assert!(half != first && apart(&half, &first) < 1e-2);
        let bits = |v: &[f32]| v.iter().fold(0u32, |h, x| h.rotate_left(5) ^ x.to_bits());
        let bits = format!("bits {} {}", bits(&first), bits(&half));
        println!("{bits};");
        Ok(world.agree("the parameters", &bits)?)
    };
    let jobs = [(); 2].map(|()| on_ranks(test, 3, 100, program));
    let bits = |job: &Job| {
        let all: Vec<&str> = job.text.split("bits ").skip(1).filter_map(|rest| rest.split(';').next()).collect();
        assert!(job.succeeded && all.len() == 3, "{}", job.text);
        all[0].to_string()
    };
    assert_eq!(bits(&jobs[0]), bits(&jobs[1]));
}

#[test]
fn a_mismatch_is_found_and_named() {
    let test = "a_mismatch_is_found_and_named";
    let job = on_ranks(test, 3, 100, |world| {
        let width = if world.rank() == 1 { 6 } else { 5 };
        let mut model = Linear::new(4, width, 1, &Device::cpu());
        Ok(world.broadcast(&mut model)?)
    });
    let expect = "rank 1 has `weight: f32[6, 4]` where rank 0 has `weight: f32[5, 4]`";
    assert!(!job.succeeded && job.text.contains(expect), "{}", job.text);
}

/// That two ranks do not train together, and why.
#[track_caller]
fn refused(test: &str, why: &str, program: impl FnOnce(&World) -> Outcome) {
    let job = on_ranks(test, 2, 100, program);
    let has_ended_well = [0, 1].iter().any(|rank| job.text.contains(&format!("rank {rank} of 2 is done")));
    assert!(!job.succeeded && !has_ended_well && job.text.contains(why), "{}", job.text);
}

/// A step with four examples each.
fn stepped(model: &mut Sequential, many: &mut Distributed) -> Result<(), lazuli::Error> {
    let own = loss_of(model, &[20], 0, 0, 4);
    many.step(model, own).map(drop)
}

#[test]
fn parameters_that_differ_are_found_at_the_first_step() {
    let why = "the parameters: the ranks differ: rank 1 has `layers.2.weight with hash ";
    refused("parameters_that_differ_are_found_at_the_first_step", why, |world| {
        // The last layer's weights are drawn from another seed on each rank, and no rank broadcasts its model.
        let (cpu, seed) = (Device::cpu(), world.rank() as u64);
        let (first, last) = (Linear::new(20, 32, 3, &cpu), Linear::new(32, 5, seed, &cpu));
        let mut model = Sequential::new().push(first).push(Relu).push(last);
        Ok(stepped(&mut model, &mut Distributed::new(optimizer(true), world))?)
    });
}

#[test]
fn what_would_make_parameters_the_same_is_said() {
    let why = "; `world.broadcast(&mut model)` gives all ranks the parameters of rank 0";
    refused("what_would_make_parameters_the_same_is_said", why, |world| {
        let mut model = mlp(world.rank() as u64);
        Ok(stepped(&mut model, &mut Distributed::new(optimizer(true), world).sharded())?)
    });
}

#[test]
fn numbers_of_rules_that_differ_are_found_at_the_first_step() {
    let why = "the model: the ranks differ: rank 1 has `beta2: 0.99` where rank 0 has `beta2: 0.999`";
    refused("numbers_of_rules_that_differ_are_found_at_the_first_step", why, |world| {
        let beta2 = [0.999, 0.99][world.rank()];
        let rule = Optimizer::new(Adam { beta2, ..Adam::default() }, 1e-3);
        Ok(stepped(&mut mlp(3), &mut Distributed::new(rule, world))?)
    });
}

#[test]
fn learning_rates_that_differ_are_found_at_any_step() {
    let why = "the learning rate: the ranks differ: rank 1 has 0.02 where rank 0 has 0.01";
    refused("learning_rates_that_differ_are_found_at_any_step", why, |world| {
        let mut model = mlp(3);
        let mut many = Distributed::new(optimizer(false), world);
        for lr in [[0.1, 0.1], [0.05, 0.05], [0.01, 0.02]] {
            many.lr = lr[world.rank()];
            let before = flat(&parameters(&mut model).into_iter().map(|(_, w)| w).collect::<Vec<_>>())?;
            let outcome = stepped(&mut model, &mut many);
            let after = flat(&parameters(&mut model).into_iter().map(|(_, w)| w).collect::<Vec<_>>())?;
            // Both ranks find that their learning rates differ, and neither updates its parameters.
            assert_eq!((outcome.is_ok(), before != after), (lr[0] == lr[1], lr[0] == lr[1]));
            outcome?;
        }
        Ok(())
    });
}

#[test]
fn state_that_only_one_rank_has_loaded_is_found_at_the_first_step() {
    let why = "the optimiser's state: the ranks differ: rank 1 has `adam.step with hash ";
    refused("state_that_only_one_rank_has_loaded_is_found_at_the_first_step", why, |world| {
        let (mut model, mut alone) = (mlp(3), optimizer(true));
        let loss = loss_of(&model, &[20], 0, 0, 4);
        alone.step(&mut model, loss)?;
        let saved = alone.named(&Device::cpu());
        let mut many = Distributed::new(optimizer(true), world);
        if world.rank() == 0 {
            many.load(&mut model, |name| saved.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone()))?;
        }
        Ok(stepped(&mut model, &mut many)?)
    });
}

struct Numbers;

impl Dataset for Numbers {
    type Batch = Vec<usize>;
    fn n_examples(&self) -> usize {
        29
    }
    fn batch(&self, examples: &[usize]) -> Vec<usize> {
        examples.to_vec()
    }
}

#[test]
fn seeds_of_loaders_that_differ_are_found_before_the_first_batch() {
    let why = "the batches: the ranks differ: rank 1 has `29 examples, batches of 9, in the order of seed 8` where rank 0 has \
               `29 examples, batches of 9, in the order of seed 7`";
    refused("seeds_of_loaders_that_differ_are_found_before_the_first_batch", why, |world| {
        // Of those that are the same each rank gets its part.
        let same = world.shard(Loader::new(Numbers, 10))?;
        assert_eq!(same.epoch(0).next().map(|batch| batch[0]), Some(5 * world.rank()));
        Ok(world.shard(Loader::new(Numbers, 9).shuffled(7 + world.rank() as u64)).map(drop)?)
    });
}

#[test]
fn settings_that_differ_are_found_when_ranks_join() {
    let test = "settings_that_differ_are_found_when_ranks_join";
    let is_rank_1 = std::env::var("OMPI_COMM_WORLD_RANK").is_ok_and(|rank| rank == "1");
    if is_rank_1 && std::env::var("LAZULI_MPI_TIMEOUT").is_ok_and(|seconds| seconds == "100") {
        use std::os::unix::process::CommandExt;
        let mut again = Command::new(std::env::current_exe().expect("a test has a file"));
        again.args(std::env::args().skip(1)).env("LAZULI_MPI_TIMEOUT", "90");
        panic!("{}", again.exec());
    }
    let why = "versions and settings: the ranks differ: rank 1 has `Settings { timeout: 90s }` where rank 0 has \
               `Settings { timeout: 100s }`";
    refused(test, why, |_| Ok(()));
}

#[test]
fn an_error_of_one_rank_is_an_error_of_all() {
    let test = "an_error_of_one_rank_is_an_error_of_all";
    // In files: a launcher may lose output of a job that fails.
    let told = |rank: usize| std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("told-{rank}"));
    if std::env::var_os(CHILD).is_none() {
        for rank in [0, 2] {
            std::fs::write(told(rank), "").expect("there is room");
        }
    }
    let job = on_ranks(test, 3, 100, |world| {
        let first = world.barrier();
        if world.rank() == 1 {
            return Err("no space left on device".into());
        }
        // Word of the failure may overtake the end of the first barrier: then that is the call which returns it.
        let error = first.and_then(|()| world.barrier()).expect_err("rank 1 does not come").to_string();
        std::fs::write(told(world.rank()), &error)?;
        Err(error.into())
    });
    assert!(!job.succeeded, "{}", job.text);
    for rank in [0, 2] {
        let text = std::fs::read_to_string(told(rank)).expect("was written");
        assert!(text.starts_with("barrier: rank 1: no space left on device"), "rank {rank}: {text}\n{}", job.text);
    }
}

#[test]
fn a_rank_that_leaves_or_panics_ends_the_job() {
    let test = "a_rank_that_leaves_or_panics_ends_the_job";
    let job = on_ranks(test, 2, 100, |world| {
        assert!(world.rank() == 0, "rank one is not well");
        Ok(world.barrier()?)
    });
    assert!(!job.succeeded && job.text.contains("panicked: rank one is not well"), "{}", job.text);
}

#[test]
fn a_rank_that_hangs_is_named_and_nothing_is_left() {
    let test = "a_rank_that_hangs_is_named_and_nothing_is_left";
    let job = on_ranks(test, 3, 15, |world| {
        world.barrier()?;
        if world.rank() == 2 {
            // In the middle of whatever is under way then.
            std::thread::spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(200));
                signal("-STOP");
            });
        }
        for _ in 0..1_000_000 {
            world.barrier()?;
        }
        Ok(())
    });
    assert!(!job.succeeded && job.text.contains("rank 2 gave no sign for "), "{}", job.text);
}

#[test]
fn a_rank_that_never_joins_ends_the_job() {
    let test = "a_rank_that_never_joins_ends_the_job";
    if std::env::var_os(CHILD).is_some() && std::env::var("OMPI_COMM_WORLD_RANK").is_ok_and(|rank| rank == "1") {
        signal("-STOP");
    }
    let job = on_ranks(test, 3, 8, |_| Ok(()));
    let expect = " has waited 6 seconds for all ranks to join";
    assert!(!job.succeeded, "{}", job.text);
    // Every rank that waits names itself; the rank that never joined does not.
    let complains = |rank: usize| job.text.contains(&format!("rank {rank} of 3{expect}"));
    assert_eq!([0, 1, 2].map(complains), [true, false, true], "{}", job.text);
}

#[test]
fn a_rank_that_waits_elsewhere_is_named() {
    let test = "a_rank_that_waits_elsewhere_is_named";
    let job = on_ranks(test, 2, 15, |world| {
        world.barrier()?;
        if world.rank() == 1 {
            std::thread::sleep(LONGEST);
        }
        Ok(world.barrier()?)
    });
    assert!(!job.succeeded && job.text.contains("rank 1 gave no sign of taking part"), "{}", job.text);
}

#[test]
fn a_rank_that_is_killed_ends_the_job() {
    let test = "a_rank_that_is_killed_ends_the_job";
    let job = on_ranks(test, 4, 100, |world| {
        let mut model = mlp(1);
        let mut many = Distributed::new(optimizer(true), world);
        for batch in 0..1_000_000 {
            let own = loss_of(&model, &[20], batch % 7, 0, 4);
            many.step(&mut model, own)?;
            if world.rank() == 3 && batch == 20 {
                signal("-KILL");
            }
        }
        Ok(())
    });
    assert!(!job.succeeded && job.text.contains("rank 3"), "{}", job.text);
}

/// Sends this process a signal.
fn signal(name: &str) {
    let sent = Command::new("kill").args([name, &std::process::id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
}
