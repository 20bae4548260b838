//! `lazuli train --distributed` as a user meets it, on ranks of this machine; and a rank with two devices. Tests take turns.
#![cfg(feature = "mpi")]

mod images;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use images::images;
use lazuli::{Device, DeviceKind, Tensor};
use lazuli_mpi::{Distributed, World};
use lazuli_nn::{Adam, Layer, Linear, Optimizer, Relu, Sequential, loss, parameters};

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `mpirun`, which ends a job that hangs after a while.
fn mpirun(n: usize) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args(["--timeout", "200", "-n", &n.to_string(), "--oversubscribe", "--bind-to", "none"])
        .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
        .env("LAZULI_MPI_TIMEOUT", "100");
    command
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A run on so many ranks; 0 for one without MPI.
fn train(n: usize, data: &Path, out: &Path, words: &[&str]) -> Output {
    let mut command = if n == 0 { Command::new(env!("CARGO_BIN_EXE_lazuli")) } else { mpirun(n) };
    if n > 0 {
        command.arg(env!("CARGO_BIN_EXE_lazuli"));
    }
    command.args(["train", "mnist", "--device", "cpu", "--batch", "27", "--data"]).arg(data).arg("--out").arg(out);
    if n > 0 {
        command.arg("--distributed");
    }
    command.args(words).output().expect("the command starts")
}

/// The losses of all epochs, as the log has them.
fn losses(out: &Path) -> Vec<f64> {
    let log = std::fs::read_to_string(out.join("log.csv")).expect("a log is written");
    log.lines().skip(1).map(|line| line.split(',').nth(1).and_then(|x| x.parse().ok()).expect("is a number")).collect()
}

#[test]
fn ranks_train_what_one_process_trains_and_any_number_of_them_goes_on() {
    let _turn = turn();
    let (data, folder) = (images(200, 30), tempfile::tempdir().expect("a folder"));
    let (alone, many) = (folder.path().join("alone"), folder.path().join("many"));
    // 27 images do not divide among 2 or 4. The learning rate goes by how many epochs are asked for: it is the same here.
    let mut runs = vec![(0, alone.clone(), "3", false)];
    runs.extend([(3, many.clone(), "3", false)]);
    for (n, out, epochs, resume) in &runs {
        let words = ["--epochs", epochs, "--resume"];
        let output = train(*n, data.path(), out, &words[..2 + *resume as usize]);
        let (text, errors) = texts(&output);
        assert!(output.status.success(), "{n} ranks: {text}{errors}");
        if *n > 0 {
            assert_eq!(text.matches("parameters, 3 ranks").count(), 1, "{text}");
            assert!(text.contains("images/s of 3 ranks") && text.contains("% of the time waiting"), "{text}");
        }
    }
    let (expect, got) = (losses(&alone), losses(&many));
    assert_eq!((expect.len(), got.len()), (3, 3));
    expect.iter().zip(&got).for_each(|(a, b)| assert!((a - b).abs() < 1e-4, "{expect:?} and {got:?}"));

    // Another number of ranks goes on, then one process without MPI; whoever did it has gone the same way.
    for (n, epochs) in [(2, "4"), (4, "5"), (0, "6")] {
        for (n, out) in [(n, &many), (0, &alone)] {
            let output = train(n, data.path(), out, &["--epochs", epochs, "--resume"]);
            assert!(output.status.success(), "{n} ranks: {:?}", texts(&output));
        }
        let (expect, got) = (losses(&alone), losses(&many));
        expect.iter().zip(&got).for_each(|(a, b)| assert!((a - b).abs() < 1e-3, "{expect:?} and {got:?}"));
    }
    assert_eq!(losses(&many).len(), 6);
}

#[test]
fn what_one_rank_cannot_do_is_told_by_all() {
    let _turn = turn();
    let (data, folder) = (images(60, 10), tempfile::tempdir().expect("a folder"));
    let output = train(2, data.path(), &folder.path().join("none"), &["--resume"]);
    let (text, errors) = texts(&output);
    assert!(!output.status.success() && errors.contains("there is no checkpoint in"), "{text}{errors}");

    // Seeds that differ are found at the start, and so are images.
    let lazuli = env!("CARGO_BIN_EXE_lazuli");
    let words = |seed: &str, data: &Path| {
        let data = data.display().to_string();
        let out = folder.path().join("run").display().to_string();
        let words = [lazuli, "train", "mnist", "--distributed", "--device", "cpu", "--data", &data, "--out", &out];
        words.into_iter().chain(["--batch", "27", "--seed", seed]).map(String::from).collect::<Vec<_>>()
    };
    let differ = |first: Vec<String>, second: Vec<String>, expect: &str| {
        let output = mpirun(1).args(first).args([":", "-n", "1"]).args(second).output().expect("mpirun starts");
        let (text, errors) = texts(&output);
        assert!(!output.status.success() && errors.contains(expect), "{text}{errors}");
    };
    let expect = "the options: the ranks differ: rank 1 has `seed 2` where rank 0 has `seed 1`";
    differ(words("1", data.path()), words("2", data.path()), expect);
    let fewer = images(50, 10);
    let expect =
        "the images: the ranks differ: rank 1 has `training: 50 examples, whole batches of 27, in the order of seed 1`";
    differ(words("1", data.path()), words("1", fewer.path()), expect);
}

#[test]
fn a_full_disk_on_rank_0_ends_the_job_and_the_last_checkpoint_loads() {
    let _turn = turn();
    let (data, folder) = (images(60, 10), tempfile::tempdir().expect("a folder"));
    let out = folder.path().join("run");
    assert!(train(2, data.path(), &out, &["--epochs", "1"]).status.success());
    // A limit of 64 KiB per file on rank 0 alone: the checkpoint has 2 MB.
    let script = "[ \"$OMPI_COMM_WORLD_RANK\" != 0 ] || ulimit -f 64; exec \"$@\"";
    let output = mpirun(3)
        .args(["sh", "-c", script, "sh", env!("CARGO_BIN_EXE_lazuli"), "train", "mnist", "--distributed"])
        .args(["--device", "cpu", "--batch", "27", "--epochs", "2", "--resume", "--data"])
        .arg(data.path())
        .arg("--out")
        .arg(&out)
        .output()
        .expect("mpirun starts");
    let (text, errors) = texts(&output);
    assert!(!output.status.success() && errors.contains("rank 0"), "{text}{errors}");
    let output = train(0, data.path(), &out, &["--epochs", "2", "--resume"]);
    let (text, errors) = texts(&output);
    assert!(output.status.success() && text.contains("epoch 2: loss"), "{text}{errors}");
}

/// Vulkan's loader told twice of Mesa's driver that runs on the CPU: two adapters. A copy of the driver is another one.
fn two_adapters(folder: &Path) -> String {
    let drivers = std::fs::read_dir("/usr/share/vulkan/icd.d").expect("mesa-vulkan-drivers is installed");
    let files: Vec<PathBuf> = drivers.filter_map(|file| Some(file.ok()?.path())).collect();
    let first = files.iter().find(|file| file.to_string_lossy().contains("lvp_icd")).expect("lavapipe is there");
    let text = std::fs::read_to_string(first).expect("can be read");
    let library = text.split('"').find(|word| word.contains("libvulkan_lvp")).expect("names its library");
    let found = ["", "/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/", "/usr/lib/"];
    let there = found.iter().map(|at| format!("{at}{library}")).find(|path| Path::new(path).exists());
    let copy = folder.join("libvulkan_lvp.so");
    std::fs::copy(there.expect("the library is there"), &copy).expect("there is room");
    let second = folder.join("second_icd.json");
    std::fs::write(&second, text.replace(library, &copy.display().to_string())).expect("there is room");
    format!("{}:{}", first.display(), second.display())
}

/// Set in the processes that `mpirun` starts.
const CHILD: &str = "LAZULI_MPI_TEST_CHILD";

#[test]
fn a_rank_with_two_devices_counts_as_two() {
    let test = "a_rank_with_two_devices_counts_as_two";
    if std::env::var_os(CHILD).is_some() {
        let code = lazuli_mpi::run(|world| two_devices(world).map_err(|e| e.to_string()));
        std::process::exit((code != ExitCode::SUCCESS) as i32);
    }
    let (_turn, folder) = (turn(), tempfile::tempdir().expect("a folder"));
    let output = mpirun(2)
        .arg(std::env::current_exe().expect("a test has a file"))
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(CHILD, "1")
        .env("VK_DRIVER_FILES", two_adapters(folder.path()))
        .env("LAZULI_DEVICE", "software")
        .output()
        .expect("mpirun starts");
    let (text, errors) = texts(&output);
    assert!(output.status.success() && text.matches("two devices agree").count() == 2, "{text}{errors}");
}

fn two_devices(world: &World) -> lazuli::Result<()> {
    let infos = Device::all();
    let software: Vec<usize> = (0..infos.len()).filter(|i| infos[*i].kind == DeviceKind::Software).collect();
    assert_eq!(software.len(), 2, "{infos:?}");
    let devices = [Device::open(&software[0].to_string())?, Device::open(&software[1].to_string())?];
    assert!(devices[0] != devices[1]);
    // Without the variable a rank takes the CPU rather than a driver that runs on it.
    assert_eq!(world.device()?.info().kind, DeviceKind::Software);
    let make = |device: &Device| {
        let (first, last) = (Linear::new(6, 8, 1, device), Linear::new(8, 3, 2, device));
        Sequential::new().push(first).push(Relu).push(last)
    };
    let values = |model: &mut Sequential| -> lazuli::Result<Vec<f32>> {
        let all: lazuli::Result<Vec<Vec<f32>>> = parameters(model).iter().map(|(_, w)| w.to_vec::<f32>()).collect();
        Ok(all?.concat())
    };
    let loss = |model: &Sequential, device: &Device, from: usize, to: usize| {
        let x: Vec<f32> = (from * 6..to * 6).map(|i| ((i * 7919) % 101) as f32 / 101.0).collect();
        let labels: Vec<i32> = (from..to).map(|i| (i % 3) as i32).collect();
        let n = to - from;
        let x = Tensor::from_vec(x, [n, 6], device);
        loss::cross_entropy(&model.forward(&x), &Tensor::from_vec(labels, [n], device))
    };
    let [mut a, mut b] = [make(&devices[0]), make(&devices[1])];
    let (cpu, rank) = (Device::cpu(), world.rank());
    let mut alone = make(&cpu);
    let mut many = Distributed::new(Optimizer::new(Adam::default(), 1e-2), world);
    let mut one = Optimizer::new(Adam::default(), 1e-2);
    let submits = || devices.each_ref().map(|device| device.stats().submits);
    for step in 0..3 {
        let (before, n_before) = (submits(), world.n_collectives());
        // Twelve examples: six a rank, two on its first device and four on its second.
        let at = 6 * rank;
        let losses = vec![(loss(&a, &devices[0], at, at + 2), 2), (loss(&b, &devices[1], at + 2, at + 6), 4)];
        many.step_replicas(&mut [&mut a, &mut b], losses)?;
        let (after, n_stages) = (submits(), world.n_collectives() - n_before);
        // The first step also reads parameters, to compare them. In the others every stage is one submit on each device and one
        // reduction; the first device also submits the update, and what is then moved to the second one.
        if step > 0 {
            assert_eq!(n_stages, 3, "the last layer, and of the first its bias and its weight");
            assert_eq!([after[0] - before[0], after[1] - before[1]], [n_stages + 2, n_stages], "step {step}");
        }
        let whole = loss(&alone, &cpu, 0, 12);
        one.step(&mut alone, whole)?;
    }
    let (got, expect) = (values(&mut a)?, values(&mut alone)?);
    assert_eq!(got, values(&mut b)?);
    let most = got.iter().zip(&expect).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    assert!(most < 1e-5, "{most:e}");
    // With one device: a submit a stage, and one for the update.
    let mut many = Distributed::new(Optimizer::new(Adam::default(), 1e-2), world);
    for step in 0..3 {
        let (before, n_before) = (submits(), world.n_collectives());
        let own = loss(&a, &devices[0], 6 * rank, 6 * rank + 6);
        many.step(&mut a, own)?;
        let n_stages = world.n_collectives() - n_before;
        assert!(step == 0 || (n_stages, submits()[0] - before[0]) == (3, 4), "step {step}");
    }
    println!("rank {rank}: two devices agree");
    Ok(())
}
