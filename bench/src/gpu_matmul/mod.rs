//! Matrix products on a GPU: Lazuli beside the best hand-written WGSL for each shape, on the same wgpu device.

pub mod hand;
pub mod raw;

pub use hand::{Right, Sizes};

use lazuli::{Device, Tensor, Weights};

use crate::contender::{Case, Fresh, Result};
use crate::gpu::Hand;
use crate::inputs::values;
use crate::measure::{Effort, Runner, run_in_turns};
use crate::reference::compare;
use crate::report::{Row, Yardsticks, judge};
use crate::workload::{Limit, Tolerance};

/// A product that is measured.
pub struct Product {
    pub name: &'static str,
    pub sizes: Sizes,
    pub right: Right,
    pub call: Call,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    /// Multiplies two matrices on the device.
    Compute,
    /// Writes the left one, multiplies it with resident weights and reads the result.
    RoundTrip,
}

const fn product(name: &'static str, [m, k, n]: [usize; 3], right: Right) -> Product {
    Product { name, sizes: Sizes { m, k, n }, right, call: Call::Compute }
}

const fn resident(name: &'static str, [m, k, n]: [usize; 3]) -> Product {
    Product { name, sizes: Sizes { m, k, n }, right: Right::Transposed, call: Call::RoundTrip }
}

/// All of them, in the order they are printed.
pub const ALL: &[Product] = &[
    product("256³", [256, 256, 256], Right::Plain),
    product("1×1536×1536", [1, 1536, 1536], Right::Plain),
    product("1×1536×1536, W [n, k]", [1, 1536, 1536], Right::Transposed),
    product("1×4096×4096", [1, 4096, 4096], Right::Plain),
    product("1×4096×4096, W [n, k]", [1, 4096, 4096], Right::Transposed),
    product("8×1536×1536", [8, 1536, 1536], Right::Plain),
    product("64×1536×1536", [64, 1536, 1536], Right::Plain),
    product("1024³", [1024, 1024, 1024], Right::Plain),
    product("2048³", [2048, 2048, 2048], Right::Plain),
    resident("Weights 1×64×64", [1, 64, 64]),
];

/// Rows of the result that are compared with f64: spread over all of it.
const CHECKED_ROWS: usize = 64;

/// Everyone on one product, in turns. Of the hand-written kernels the one with the least CPU time counts, as `hand`; the
/// others follow at the end, by name.
pub fn measure(product: &Product, device: &Device, effort: Effort) -> Result<Vec<Row>> {
    let Sizes { m, k, n } = product.sizes;
    let (a, b) = (values(0, m * k), values(1, k * n));
    let hand = Hand::new(device)?;
    let mut runners = Vec::new();
    let mut names = Vec::new();
    let has_subgroups = hand.device.features().contains(lazuli::gpu::wgpu::Features::SUBGROUP);
    let is_eight = has_subgroups && hand.device.adapter_info().subgroup_max_size == 8;
    let can_run = |kernel: &hand::Kernel| is_eight || !kernel.text.contains("subgroup");
    for kernel in hand::kernels(product.sizes, product.right).into_iter().filter(can_run) {
        names.push(format!("hand {}", kernel.name));
        let inputs = [&a[..], &b[..]];
        let case = match product.call {
            Call::Compute => raw::case(&hand, &kernel, product.sizes, inputs),
            Call::RoundTrip => raw::round_trip(Hand::new(device)?, &kernel, product.sizes, inputs),
        };
        runners.push(Runner::new("hand", Ok(case)));
    }
    let case = match product.call {
        Call::Compute => Ok(lazuli_case(product, device, &a, &b)),
        Call::RoundTrip => Resident::case(product, device, a.clone(), &b),
    };
    runners.push(Runner::new("lazuli", case));
    #[cfg(feature = "burn-wgpu")]
    if product.right == Right::Plain && product.call == Call::Compute {
        runners.push(burn_runner(product, device, &a, &b));
    }
    run_in_turns(&mut runners, effort);

    let right = reference(product, &a, &b);
    let limit = Limit::Arithmetic { flops: 2 * m * k * n };
    let row = |runner: Runner| {
        let contender = runner.contender;
        let outcome = runner.finish().map(|(timing, y)| {
            let checked: Vec<f32> = checked_rows(m).flat_map(|r| y[r * n..][..n].to_vec()).collect();
            (timing, compare(&checked, &right, Tolerance { abs: 5e-4, rel: 0.0 }))
        });
        Row::new(product.name, contender, limit, outcome)
    };
    let mut rows: Vec<Row> = runners.into_iter().map(row).collect();
    rows.iter_mut().zip(names).for_each(|(row, name)| row.contender = name);
    put_best_hand_first(&mut rows);
    judge(&mut rows, Yardsticks::default());
    Ok(rows)
}

/// The hand-written kernel that takes least, of those that are right, is what the others are compared with.
fn put_best_hand_first(rows: &mut [Row]) {
    let cost = |row: &Row| match row.verdict == "ok" && row.contender.starts_with("hand") {
        true => row.cpu_ms.unwrap_or(f64::INFINITY),
        false => f64::INFINITY,
    };
    rows.sort_by(|x, y| f64::total_cmp(&cost(x), &cost(y)));
    if let Some(best) = rows.first_mut() {
        best.contender = "hand".to_string();
    }
    // The contenders before the also-rans.
    rows.sort_by_key(|row| row.contender.starts_with("hand "));
}

/// The product as a program writes it, computed and waited for in each call.
fn lazuli_case(product: &Product, device: &Device, a: &[f32], b: &[f32]) -> Box<dyn Case> {
    let Sizes { m, k, n } = product.sizes;
    let a = Tensor::from_slice(a, [m, k], device);
    let b = match product.right {
        Right::Plain => Tensor::from_slice(b, [k, n], device),
        Right::Transposed => Tensor::from_slice(b, [n, k], device).t(),
    };
    let device = device.clone();
    let run = move || {
        let y = a.matmul(&b).compute().map_err(|error| error.to_string())?;
        device.sync().map_err(|error| error.to_string())?;
        Ok(y)
    };
    Fresh::case(Box::new(run), |y: &Tensor| y.to_vec().map_err(|error| error.to_string()))
}

/// burn, after its own tuning.
#[cfg(feature = "burn-wgpu")]
fn burn_runner(product: &Product, device: &Device, a: &[f32], b: &[f32]) -> Runner {
    use crate::contender::Contender;
    use crate::inputs::Input;
    let Sizes { m, k, n } = product.sizes;
    let inputs = [Input { shape: vec![m, k], data: a.to_vec() }, Input { shape: vec![k, n], data: b.to_vec() }];
    let burn = crate::burn_side::Burn::wgpu(device.info().kind);
    let case = burn.prepare(crate::workload::Work::Matmul { m, k, n }, &inputs);
    Runner::new(burn.name(), case.unwrap_or(Err("takes no part".into())))
}

/// `Weights::matmul` on weights that are there.
struct Resident {
    weights: Weights,
    m: usize,
    input: Vec<f32>,
    output: Vec<f32>,
}

impl Resident {
    fn case(product: &Product, device: &Device, input: Vec<f32>, b: &[f32]) -> Result<Box<dyn Case>> {
        let Sizes { m, k, n } = product.sizes;
        let mut weights = Weights::new(device);
        weights.upload("w", b, n, k).map_err(|error| error.to_string())?;
        Ok(Box::new(Resident { weights, m, input, output: vec![0.0; m * n] }))
    }
}

impl Case for Resident {
    fn call(&mut self) -> Result<()> {
        self.weights.matmul("w", &self.input, &mut self.output, self.m).map_err(|error| error.to_string())
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(self.output.clone())
    }
}

fn checked_rows(m: usize) -> impl Iterator<Item = usize> {
    (0..m).step_by(m.div_ceil(CHECKED_ROWS))
}

/// Those rows in f64.
fn reference(product: &Product, a: &[f32], b: &[f32]) -> Vec<f64> {
    let Sizes { m, k, n } = product.sizes;
    let at = |p: usize, j: usize| match product.right {
        Right::Plain => b[p * n + j],
        Right::Transposed => b[j * k + p],
    };
    let row = |r: usize| {
        let mut y = vec![0.0; n];
        for p in 0..k {
            y.iter_mut().enumerate().for_each(|(j, y)| *y += a[r * k + p] as f64 * at(p, j) as f64);
        }
        y
    };
    checked_rows(m).flat_map(row).collect()
}
