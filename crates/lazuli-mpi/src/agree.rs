//! What must be the same on all ranks, compared where a difference would train them apart without a word: versions and settings
//! when ranks join, models before a broadcast, batches when a loader is sharded; and before the first step options, shapes, what the
//! rule was made with and the values of parameters and state. Texts and hashes travel, not numbers. Learning rates may
//! change at every step, so they travel with its gradients (see `reduce`).

use lazuli::{Device, Result, Tensor};
use lazuli_nn::data::{Dataset, Loader};
use lazuli_nn::{Module, Optimizer, parameters};

use crate::collectives::Task;
use crate::world::{Settings, World, fault, words};

impl World {
    /// That all ranks hand in the same text. If not, all of them get an error that says which line differs where: for seeds,
    /// sizes and whatever else must be the same everywhere.
    ///
    /// ```
    /// # use lazuli_mpi::World;
    /// # let world = World::init()?;
    /// let seed = 7;
    /// world.agree("the options", &format!("seed {seed}"))?;
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn agree(&self, what: &str, text: &str) -> Result<()> {
        self.agree_or(what, text, "")
    }

    /// The same; what would help is said at the end of the error.
    #[track_caller]
    fn agree_or(&self, what: &str, text: &str, remedy: &str) -> Result<()> {
        const MOST: usize = 512;
        if self.size() == 1 {
            return Ok(());
        }
        let own = [hash(text.bytes()).to_le_bytes(), (text.len() as u64).to_le_bytes()].concat();
        let all = self.gather_bytes(what, own, &vec![16; self.size()])?;
        if all.chunks(16).all(|head| head == &all[..16]) {
            return Ok(());
        }
        let first_len = all[8..16].try_into().map_or(0, u64::from_le_bytes) as usize;
        let mut first = if self.rank() == 0 { text.as_bytes().to_vec() } else { vec![0; first_len] };
        first = self.wait_bytes(self.begin(what, Task::Broadcast { bytes: first, root: 0 }))?;
        let first = String::from_utf8_lossy(&first).into_owned();
        let mut own = difference(&first, text).into_bytes();
        own.resize(MOST, 0);
        let all = self.gather_bytes(what, own, &vec![MOST; self.size()])?;
        let said = all.chunks(MOST).map(|said| String::from_utf8_lossy(said).trim_end_matches('\0').to_string());
        let differences: Vec<String> = said
            .enumerate()
            .filter(|(_, said)| !said.is_empty())
            .map(|(rank, said)| format!("rank {rank} has {said}"))
            .collect();
        Err(fault("agree", format!("{what}: the ranks differ: {}{remedy}", differences.join("; "))))
    }

    /// Of every batch of a loader this rank's part, as [`Loader::sharded`] gives it, once all ranks have been found to have the
    /// same batches: of as many examples, in the same order. All ranks call it.
    ///
    /// ```
    /// # use lazuli_mpi::World;
    /// # use lazuli_nn::data::{Dataset, Loader};
    /// # struct Count;
    /// # impl Dataset for Count {
    /// #     type Batch = Vec<usize>;
    /// #     fn n_examples(&self) -> usize { 10 }
    /// #     fn batch(&self, examples: &[usize]) -> Vec<usize> { examples.to_vec() }
    /// # }
    /// let world = World::init()?;
    /// let loader = world.shard(Loader::new(Count, 4).shuffled(1))?;
    /// assert_eq!(loader.n_batches(), 3);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn shard<D: Dataset>(&self, loader: Loader<D>) -> Result<Loader<D>> {
        self.agree("the batches", &loader.to_string())?;
        Ok(loader.sharded(self.rank(), self.size()))
    }

    /// That all ranks have parameters with the same bits, and optimisers that remember the same. Of a sharded one every rank
    /// remembers something else, after as many steps.
    #[track_caller]
    pub(crate) fn agree_on_values(
        &self,
        parameters: &[(String, Tensor)],
        optimizer: &Optimizer,
        is_sharded: bool,
    ) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        let device = parameters.first().map_or(Ok(Device::cpu()), |(_, w)| w.device().cloned())?;
        // The first is the number of steps.
        let mut state = optimizer.named(&device);
        state.truncate(if is_sharded { 1 } else { state.len() });
        let remedy = "; `world.broadcast(&mut model)` gives all ranks the parameters of rank 0";
        self.agree_or("the parameters", &hashes(parameters)?, remedy)?;
        let remedy = "; let all ranks `load` the same state, or none";
        self.agree_or("the optimiser's state", &hashes(&state)?, remedy)
    }
}

/// What ranks compare when they join.
pub fn identity(version: &str, library: &str, settings: &Settings) -> String {
    format!("lazuli-mpi {version}\n{library}\n{settings:?}")
}

/// The names, types and shapes of a model's parameters, a line each.
pub fn described(model: &mut (impl Module + ?Sized)) -> Result<String> {
    let mut text = String::new();
    for (name, w) in parameters(model) {
        text += &format!("{name}: {}{:?}\n", w.dtype()?, w.shape()?);
    }
    Ok(text)
}

/// Hashes of tensors' values, a line each.
fn hashes(named: &[(String, Tensor)]) -> Result<String> {
    let mut text = String::new();
    for (name, t) in named {
        text += &format!("{name} with hash {:016x}\n", hash(words(&t.detach())?));
    }
    Ok(text)
}

/// FNV-1a, by bytes or by words.
fn hash<T: Into<u64>>(of: impl IntoIterator<Item = T>) -> u64 {
    of.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, x| (hash ^ x.into()).wrapping_mul(0x0100_0000_01b3))
}

/// The first line in which a text differs from rank 0's, and what that has instead; empty if they are the same.
fn difference(first: &str, own: &str) -> String {
    let (mut theirs, mut ours) = (first.lines(), own.lines());
    loop {
        match (theirs.next(), ours.next()) {
            (None, None) => return String::new(),
            (a, b) if a == b => {}
            (a, b) => {
                // Numbers that a rule was made with are indented, with a comma behind them.
                let line = |line: Option<&str>| line.unwrap_or("nothing").trim_matches([' ', ',']).to_string();
                let short = |of: Option<&str>| line(of).chars().take(100).collect::<String>();
                return format!("`{}` where rank 0 has `{}`", short(b), short(a));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn versions_libraries_and_settings_that_differ_are_named() {
        let of =
            |version, library, seconds| identity(version, library, &Settings { timeout: Duration::from_secs(seconds) });
        let first = of("0.1.0", "Open MPI 4.1.4", 30);
        assert_eq!(difference(&first, &of("0.1.0", "Open MPI 4.1.4", 30)), "");
        let expect = "`lazuli-mpi 0.2.0` where rank 0 has `lazuli-mpi 0.1.0`";
        assert_eq!(difference(&first, &of("0.2.0", "Open MPI 5.0.1", 20)), expect);
        let expect = "`MPICH 4.2` where rank 0 has `Open MPI 4.1.4`";
        assert_eq!(difference(&first, &of("0.1.0", "MPICH 4.2", 30)), expect);
        let expect = "`Settings { timeout: 20s }` where rank 0 has `Settings { timeout: 30s }`";
        assert_eq!(difference(&first, &of("0.1.0", "Open MPI 4.1.4", 20)), expect);
    }

    #[test]
    fn every_bit_of_a_value_counts() {
        let cpu = Device::cpu();
        let of = |values: &[f32]| hashes(&[("w".to_string(), Tensor::from_slice(values, [values.len()], &cpu))]);
        let first = of(&[1.0, 2.0, 0.0]).expect("can be read");
        let others: [&[f32]; 5] =
            [&[1.0, 2.0, -0.0], &[1.0, f32::from_bits(0x4000_0001), 0.0], &[2.0, 1.0, 0.0], &[1.0, 2.0], &[]];
        assert_eq!(first, of(&[1.0, 2.0, 0.0]).expect("can be read"));
        assert!(others.iter().all(|values| of(values).expect("can be read") != first));
    }
}
