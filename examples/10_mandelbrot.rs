//! A whole program in one kernel: two dozen rounds of z ← z² + c over a plane, drawn with letters. Run it with
//! `cargo run --release --example 10_mandelbrot`.

use lazuli::{DType, Device, Result, Tensor};

const WIDTH: usize = 78;
const HEIGHT: usize = 28;
const ROUNDS: usize = 24;

fn main() -> Result<()> {
    let cpu = Device::cpu();

    // The plane: real parts along a row, imaginary parts down a column. They broadcast against each other.
    let re = Tensor::linspace(-2.2, 0.8, WIDTH, &cpu).compute()?;
    let im = Tensor::linspace(-1.2, 1.2, HEIGHT, &cpu).unsqueeze(-1).compute()?;

    let (mut x, mut y) = (re.zeros_like(), im.zeros_like());
    let mut count = Tensor::zeros([HEIGHT, WIDTH], DType::I32, &cpu);
    for _ in 0..ROUNDS {
        // (x + iy)² + c
        let (x2, y2) = (x.square(), y.square());
        count = count.add(x2.add(&y2).le(4.0));
        y = x.mul(&y).mul(2.0).add(&im);
        x = x2.sub(&y2).add(&re);
    }

    // Two hundred ops, of which none is stored in memory but the last.
    let plan = count.explain()?;
    println!(
        "{} ops, {} kernel, {} B of temporaries",
        plan.kernels[0].ops.len(),
        plan.kernels.len(),
        plan.peak_temp_bytes
    );
    assert_eq!(plan.kernels.len(), 1);
    assert_eq!(plan.peak_temp_bytes, 0);

    let count = count.to_vec::<i32>()?;
    for row in count.chunks(WIDTH) {
        let line: String = row.iter().map(|n| shade(*n as usize)).collect();
        println!("{}", line.trim_end());
    }
    // The middle of the set never escapes, a corner of the picture does at once.
    assert_eq!(count[HEIGHT / 2 * WIDTH + WIDTH / 2], ROUNDS as i32);
    assert!(count[0] < 4);
    Ok(())
}

/// Darker the later a point escapes.
fn shade(n_rounds: usize) -> char {
    const SHADES: &[u8] = b" .:-=+*%@#";
    SHADES[n_rounds * (SHADES.len() - 1) / ROUNDS] as char
}
