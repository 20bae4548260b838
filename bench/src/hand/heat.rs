//! The heat equation as a plain loop: each thread takes a band of rows, and all wait for each other between steps. Nothing
//! but what the compiler makes of it, for the processor's widest common instruction set.

use std::sync::Barrier;

use crate::workload::HEAT_RATE;

/// `n_steps` steps from `x`; the result is in `y`.
pub fn heat(x: &[f32], y: &mut [f32], side: usize, n_steps: usize, n_threads: usize) {
    let mut squares = [x.to_vec(), vec![0.0; x.len()]];
    let (first, second) = squares.split_at_mut(1);
    let (a, b) = (first[0].as_mut_ptr() as usize, second[0].as_mut_ptr() as usize);
    let barrier = Barrier::new(n_threads);
    std::thread::scope(|scope| {
        for thread in 0..n_threads {
            let barrier = &barrier;
            scope.spawn(move || {
                let rows = side * thread / n_threads..side * (thread + 1) / n_threads;
                for step in 0..n_steps {
                    let (from, to) = if step % 2 == 0 { (a, b) } else { (b, a) };
                    // SAFETY: in a step all threads read one square and each writes its own rows of the other; the
                    // barrier separates steps.
                    let from = unsafe { std::slice::from_raw_parts(from as *const f32, side * side) };
                    for row in rows.clone() {
                        let start = row * side;
                        // SAFETY: as above.
                        let to = unsafe { std::slice::from_raw_parts_mut((to as *mut f32).add(start), side) };
                        step_row(from, to, row, side);
                    }
                    barrier.wait();
                }
            });
        }
    });
    y.copy_from_slice(&squares[n_steps % 2]);
}

fn step_row(from: &[f32], to: &mut [f32], row: usize, side: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the instruction set is there.
        return unsafe { step_row_avx2(from, to, row, side) };
    }
    step_row_plain(from, to, row, side);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn step_row_avx2(from: &[f32], to: &mut [f32], row: usize, side: usize) {
    step_row_plain(from, to, row, side);
}

#[inline(always)]
fn step_row_plain(from: &[f32], to: &mut [f32], row: usize, side: usize) {
    let line = |row: Option<usize>| row.filter(|row| *row < side).map(|row| &from[row * side..][..side]);
    let (above, here, below) = (line(row.checked_sub(1)), &from[row * side..][..side], line(Some(row + 1)));
    let next = |value: f32, beside: f32| value + HEAT_RATE * (beside - 4.0 * value);
    let edge = |column: usize| {
        let at = |line: Option<&[f32]>| line.map_or(0.0, |line| line[column]);
        let left = column.checked_sub(1).map_or(0.0, |c| here[c]);
        let right = if column + 1 < side { here[column + 1] } else { 0.0 };
        next(here[column], at(above) + at(below) + left + right)
    };
    if let (Some(above), Some(below)) = (above, below) {
        let inner = to[1..side - 1].iter_mut().zip(above[1..].iter().zip(&below[1..]));
        for ((value, (above, below)), here) in inner.zip(here.windows(3)) {
            *value = next(here[1], above + below + here[0] + here[2]);
        }
        to[0] = edge(0);
        to[side - 1] = edge(side - 1);
    } else {
        (0..side).for_each(|column| to[column] = edge(column));
    }
}
