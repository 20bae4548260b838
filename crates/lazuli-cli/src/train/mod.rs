//! `lazuli train`: a model learns, and a person can watch, stop and go on. Reads data, prints and saves; all maths is the
//! engine's.

mod mnist;
mod options;
mod plot;
#[cfg(feature = "mpi")]
mod ranks;
mod record;
mod team;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use lazuli::{Device, Tensor};
use lazuli_nn::data::{Dataset, Loader};
use lazuli_nn::{Adam, Layer, Mode, Optimizer, Sequential, loss, metrics, schedule, set_mode};

use crate::Outcome;
use mnist::Mnist;
pub use options::{HELP, Options};
use record::Record;
use team::{Alone, Step, Team};

/// Where a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    epoch: u64,
    /// Batches of this epoch that are done.
    batch: u64,
}

/// A model with all that a run needs to go on.
struct Run<'t> {
    options: Options,
    device: Device,
    model: Sequential,
    team: Box<dyn Team + 't>,
    place: Place,
    record: Record,
}

/// How an epoch went.
struct Pace {
    n_images: usize,
    seconds: f64,
    /// The share of the time in which this rank waited for others.
    waited: f64,
}

/// Trains as the options say, until done or stopped.
pub fn run(options: Options, out: &mut dyn Write) -> Outcome {
    if options.distributed {
        return distributed(options, out);
    }
    let device = match &options.device {
        Some(name) => Device::open(name)?,
        None => Device::best(),
    };
    let team = Box::new(Alone(Optimizer::new(Adam::default(), options.lr)));
    trained(options, device, team, out)
}

#[cfg(feature = "mpi")]
use ranks::run as distributed;

#[cfg(not(feature = "mpi"))]
fn distributed(_: Options, _: &mut dyn Write) -> Outcome {
    let build = "cargo build --release --package lazuli-cli --features mpi";
    Err(format!("--distributed: this `lazuli` was built without MPI; `{build}` makes one with it").into())
}

/// Trains with a team.
fn trained(options: Options, device: Device, team: Box<dyn Team + '_>, out: &mut dyn Write) -> Outcome {
    let (rank, n_ranks) = (team.rank(), team.size());
    let train = Loader::new(Mnist::load(&options.data, mnist::Part::Train, &device)?, options.batch);
    let train = train.shuffled(options.seed).only_whole().sharded(rank, n_ranks);
    let n_images = train.data().n_examples();
    if options.batch > n_images {
        let (batch, data) = (options.batch, options.data.display());
        let message = format!("--batch {batch} is more than the {n_images} images in {data}; take {n_images} or fewer");
        return Err(message.into());
    }
    let test = Loader::new(Mnist::load(&options.data, mnist::Part::Test, &device)?, 500 * n_ranks);
    let test = test.sharded(rank, n_ranks);
    // Hosts may have other files.
    team.agree("the images", &format!("training: {train}\ntesting: {test}"))?;
    if rank == 0 {
        std::fs::create_dir_all(&options.out).map_err(|e| format!("--out {}: {e}", options.out.display()))?;
    }
    let mut run = Run::new(options, device, team)?;
    let n_parameters = run.n_parameters();
    let ranks = if n_ranks > 1 { format!(", {n_ranks} ranks") } else { String::new() };
    writeln!(out, "{} on {}: {n_parameters} parameters{ranks}", run.options.preset.name(), run.device.info().name)?;

    if run.place.epoch >= run.options.epochs {
        let (done, folder) = (run.place.epoch, run.options.out.display());
        writeln!(out, "the run in {folder} is finished: {done} of {} epochs are done", run.options.epochs)?;
        writeln!(out, "train on with `--resume --epochs {}`, or begin anew without `--resume`", done + 1)?;
        return Ok(());
    }

    // The first Ctrl-C ends the run after its step; what was learned is saved.
    let stop = Arc::new(AtomicBool::new(false));
    let noticed = stop.clone();
    ctrlc::set_handler(move || noticed.store(true, Ordering::Relaxed))?;

    while run.place.epoch < run.options.epochs {
        let (pace, is_stopped) = run.epoch(&train, &stop)?;
        if is_stopped {
            run.save()?;
            writeln!(out, "stopped in epoch {} and saved; go on with --resume", run.place.epoch + 1)?;
            return Ok(());
        }
        let accuracy = run.accuracy(&test)?;
        run.place = Place { epoch: run.place.epoch + 1, batch: 0 };
        run.record.end_epoch(run.place.epoch, accuracy, pace.images_per_second());
        run.save()?;
        writeln!(out, "{}{}", run.record.last_line(), pace.of_ranks(n_ranks))?;
    }
    writeln!(out, "curves: {}", run.options.out.join("curves.svg").display())?;
    Ok(())
}

impl Pace {
    /// 0 of an epoch that was stopped after its last batch, of which a resumed run has none to do.
    fn images_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.n_images as f64 / self.seconds } else { 0.0 }
    }

    /// Of ranks, how many there are and how long this one waited.
    fn of_ranks(&self, n_ranks: usize) -> String {
        match n_ranks {
            1 => String::new(),
            n => format!(" of {n} ranks, {:.0} % of the time waiting", 100.0 * self.waited),
        }
    }
}

impl<'t> Run<'t> {
    fn new(options: Options, device: Device, team: Box<dyn Team + 't>) -> Result<Run<'t>, Box<dyn std::error::Error>> {
        let model = options.preset.model(options.seed, &device);
        let mut run = Run { options, device, model, team, place: Place::default(), record: Record::default() };
        if run.options.resume {
            run.load()?;
        }
        run.team.share_model(&mut run.model)?;
        Ok(run)
    }

    fn n_parameters(&mut self) -> usize {
        let sizes = lazuli_nn::parameters(&mut self.model);
        sizes.iter().map(|(_, w)| w.shape().map_or(0, |s| s.iter().product::<usize>())).sum()
    }

    /// What is left of this epoch. Gives how it went, and whether it was stopped.
    fn epoch(&mut self, train: &Loader<Mnist>, stop: &AtomicBool) -> Result<(Pace, bool), Box<dyn std::error::Error>> {
        let n_batches = train.n_batches() as u64;
        let bar = match self.team.rank() {
            0 => progress(n_batches, self.place.epoch + 1, self.options.epochs),
            _ => ProgressBar::hidden(),
        };
        bar.set_position(self.place.batch);
        bar.reset_eta();
        let (start, waited) = (Instant::now(), self.team.waited());
        let mut pace = Pace { n_images: 0, seconds: 0.0, waited: 0.0 };
        let (mut sums, mut is_stopped) = (Vec::new(), false);
        for (images, labels) in train.epoch_from(self.place.epoch, self.place.batch as usize) {
            let step = self.place.epoch * n_batches + self.place.batch;
            let total = self.options.epochs * n_batches;
            let lr = schedule::warm_up_cosine(step, self.options.lr, n_batches / 5, total, 0.0);
            sums.extend(self.step(&images, &labels, lr)?);
            self.place.batch += 1;
            if self.place.batch.is_multiple_of(self.team.sums_every()) || self.place.batch == n_batches {
                // The steps of everybody since the last time, and whether somebody was told to stop.
                sums.push(stop.load(Ordering::Relaxed) as u32 as f32);
                sums = self.team.sum(std::mem::take(&mut sums))?;
                is_stopped = sums.pop() > Some(0.0);
                for step in sums.as_chunks::<3>().0 {
                    self.record.step(*step);
                    pace.n_images += step[2] as usize;
                }
                sums.clear();
                pace.seconds = start.elapsed().as_secs_f64();
                pace.waited = (self.team.waited() - waited).as_secs_f64() / pace.seconds;
                let (speed, ranks) = (pace.images_per_second(), pace.of_ranks(self.team.size()));
                bar.set_message(format!("{} · {speed:.0} images/s{ranks}", self.record.now()));
            }
            bar.inc(1);
            if is_stopped {
                break;
            }
        }
        bar.finish_and_clear();
        Ok((pace, is_stopped))
    }

    /// One step: the sums of loss and accuracy over this rank's images, and of how many images, come with it.
    fn step(&mut self, images: &Tensor, labels: &Tensor, lr: f64) -> lazuli::Result<[f32; 3]> {
        let n = labels.shape()?[0];
        let logits = self.model.forward(images);
        let accuracy = metrics::accuracy(&logits, labels);
        let loss = loss::cross_entropy(&logits, labels);
        drop(logits);
        let step = Step { model: &mut self.model, lr, loss, n_images: n, more: vec![accuracy] };
        let (loss, more) = self.team.step(step)?;
        match n {
            // A batch of fewer images than there are ranks.
            0 => Ok([0.0; 3]),
            _ => Ok([loss.item::<f32>()? * n as f32, more[0].item::<f32>()? * n as f32, n as f32]),
        }
    }

    /// The share of all test images that are told right.
    fn accuracy(&mut self, test: &Loader<Mnist>) -> lazuli::Result<f64> {
        set_mode(&mut self.model, Mode::Eval);
        let mut sums = vec![0.0, 0.0];
        for (images, labels) in test.epoch(0) {
            let n = labels.shape()?[0];
            if n > 0 {
                let accuracy = metrics::accuracy(&self.model.forward(&images), &labels).item::<f32>()?;
                // Whole numbers, whose sums are exact.
                sums = vec![sums[0] + (accuracy * n as f32).round(), sums[1] + n as f32];
            }
        }
        set_mode(&mut self.model, Mode::Train);
        let sums = self.team.sum(sums)?;
        Ok(sums[0] as f64 / sums[1].max(1.0) as f64)
    }

    fn save(&mut self) -> Outcome {
        let place = [self.place.epoch as u32, self.place.batch as u32];
        let mut tensors = lazuli_nn::named(&mut self.model);
        tensors.extend(self.team.named(&mut self.model, &self.device)?);
        if self.team.rank() != 0 {
            return Ok(());
        }
        tensors.push(("train.place".into(), Tensor::from_slice(&place, [2], &self.device)));
        tensors.push(("train.fixed".into(), Tensor::from_slice(&self.fixed(), [4], &self.device)));
        tensors.extend(self.record.named(&self.device));
        lazuli_io::save(self.checkpoint(), &tensors)?;
        lazuli_io::write_atomically(self.options.out.join("log.csv"), self.record.csv().as_bytes())?;
        lazuli_io::write_atomically(self.options.out.join("curves.svg"), plot::svg(&self.record).as_bytes())?;
        Ok(())
    }

    /// The options that decide which images are seen when, as words: they must stay the same over the run.
    fn fixed(&self) -> [u32; 4] {
        let (batch, seed) = (self.options.batch as u64, self.options.seed);
        [batch as u32, (batch >> 32) as u32, seed as u32, (seed >> 32) as u32]
    }

    fn load(&mut self) -> Outcome {
        // Other ranks may have no such file: they get the bytes of rank 0's.
        let bytes = if self.team.rank() == 0 { self.read_checkpoint()? } else { Vec::new() };
        let tensors = lazuli_io::from_safetensors(&self.team.share_bytes(bytes)?, &self.device)?;
        let find = |name: &str| tensors.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
        lazuli_nn::load(&mut self.model, find)?;
        self.team.load(&mut self.model, &find)?;
        let place = find("train.place").ok_or("the checkpoint is not one of a training run")?.to_vec::<u32>()?;
        let [epoch, batch] = place[..] else { return Err("the checkpoint does not say where the run was".into()) };
        self.place = Place { epoch: epoch as u64, batch: batch as u64 };
        if let Some(fixed) = find("train.fixed") {
            self.check_fixed(&fixed.to_vec::<u32>()?)?;
        }
        self.record = Record::load(find)?;
        Ok(())
    }

    fn read_checkpoint(&self) -> Result<Vec<u8>, String> {
        let folder = self.options.out.display();
        if !self.checkpoint().exists() {
            return Err(format!("--resume: there is no checkpoint in {folder}; begin a run without `--resume`"));
        }
        std::fs::read(self.checkpoint()).map_err(|e| format!("--resume: {}: {e}", self.checkpoint().display()))
    }

    fn check_fixed(&self, fixed: &[u32]) -> Result<(), String> {
        if fixed == self.fixed() {
            return Ok(());
        }
        let wide = |at: usize| fixed.get(at..at + 2).map_or(0, |w| w[0] as u64 | (w[1] as u64) << 32);
        let (batch, seed) = (wide(0), wide(2));
        Err(format!(
            "--resume: the run has `--batch {batch} --seed {seed}`; go on with that, or begin one without `--resume`"
        ))
    }

    fn checkpoint(&self) -> std::path::PathBuf {
        Path::new(&self.options.out).join("checkpoint.safetensors")
    }
}

fn progress(n_batches: u64, epoch: u64, epochs: u64) -> ProgressBar {
    let template = format!("epoch {epoch}/{epochs} [{{bar:30}}] {{msg}} · {{eta}} left");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(n_batches).with_style(style.progress_chars("=> "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run on made-up images.
    fn losses(run: &mut Run, steps: std::ops::Range<u64>) -> Vec<u32> {
        let device = run.device.clone();
        let step = |seed: u64| {
            let images = Tensor::rand([16, 1, 28, 28], seed, &device);
            let labels = Tensor::from_vec((0..16).map(|i| (i * 3 + seed as i32) % 10).collect(), [16], &device);
            let loss = run.step(&images, &labels, 1e-3).expect("runs")[0];
            run.place.batch += 1;
            loss.to_bits()
        };
        steps.map(step).collect()
    }

    #[test]
    fn an_epoch_that_had_no_batch_left_has_a_speed_of_0() {
        let pace = |n_images, seconds| Pace { n_images, seconds, waited: 0.0 };
        assert_eq!([pace(0, 0.0), pace(30, 0.5)].map(|pace| pace.images_per_second()), [0.0, 60.0]);
    }

    #[test]
    fn a_resumed_run_goes_on_bit_for_bit() {
        let folder = tempfile::tempdir().expect("there is room");
        for preset in ["mlp", "cnn"] {
            let words = ["mnist", "--preset", preset, "--out"].map(String::from);
            let words = words.into_iter().chain([folder.path().display().to_string()]);
            let options = Options::parse(words).expect("is understood");
            let alone = || Box::new(Alone(Optimizer::new(Adam::default(), 1e-3)));
            let mut run = Run::new(options.clone(), Device::cpu(), alone()).expect("starts");
            losses(&mut run, 0..3);
            run.save().expect("is saved");
            let straight = losses(&mut run, 3..8);
            let mut resumed = Run::new(Options { resume: true, ..options }, Device::cpu(), alone()).expect("goes on");
            assert_eq!(resumed.place, Place { epoch: 0, batch: 3 });
            assert_eq!(losses(&mut resumed, 3..8), straight, "{preset}");
        }
    }
}
