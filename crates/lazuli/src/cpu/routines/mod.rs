//! The CPU forms of the hand-written kernels, found by row. Each reads whole row-major tensors and writes one; they run
//! inside the device's pool and give the same bits whatever the number of threads.

mod scan;
mod scatter;
mod sort;

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};

use crate::backend::FailedCheck;
use crate::dtype::DType;
use crate::kernel::RoutineArgs;
use crate::ops::{ARGSORT, CUMSUM, RoutineRow, SCATTER_ADD, SORT};
use crate::shape::Lines;

/// One call of a routine. Inputs and output are whole, row-major and do not overlap.
pub struct RoutineCall<'a> {
    pub inputs: &'a [(&'a [u8], DType)],
    pub output: &'a mut [u8],
    pub output_dtype: DType,
    /// Shapes, parameters, and the number of the check that an index out of range fails.
    pub args: &'a RoutineArgs,
    /// As much as the routine asked for.
    pub scratch: RoutineScratch<'a>,
    /// How many threads share its work at most.
    pub n_workers: usize,
}

/// Memory of a routine's own: there before anything of the plan runs, handed out piece by piece. A routine allocates
/// nothing that grows with its tensors, since it could not say that there is no memory for it.
pub struct RoutineScratch<'a> {
    next: *mut u8,
    left: usize,
    _memory: PhantomData<&'a mut [u8]>,
}

/// Every piece starts on a cache line.
const LINE: usize = 64;

/// Numbers of which any bits are one.
trait AnyBits: Copy + 'static {}
impl AnyBits for u32 {}
impl AnyBits for u64 {}
impl AnyBits for usize {}
impl AnyBits for i64 {}
impl AnyBits for f64 {}
impl<T: AnyBits, const N: usize> AnyBits for [T; N] {}

impl<'a> RoutineScratch<'a> {
    /// Hands out this memory.
    ///
    /// # Safety
    /// So many bytes start here, on a cache line, and for as long as this lives nobody else uses them.
    pub unsafe fn new(first: *mut u8, size_bytes: usize) -> RoutineScratch<'a> {
        RoutineScratch { next: first, left: size_bytes, _memory: PhantomData }
    }

    /// So many numbers of no particular value.
    fn take<T: AnyBits>(&mut self, n: usize) -> &'a mut [T] {
        let size_bytes = room::<T>(n);
        assert!(size_bytes <= self.left, "a routine uses more scratch than it asked for");
        let first = self.next.cast::<T>();
        self.left -= size_bytes;
        self.next = self.next.wrapping_add(size_bytes);
        // SAFETY: within the memory, taken once, aligned for every number; any bits are a `T`.
        unsafe { std::slice::from_raw_parts_mut(first, n) }
    }
}

/// What so many numbers take of a [`RoutineScratch`].
fn room<T>(n: usize) -> usize {
    n.saturating_mul(size_of::<T>()).checked_next_multiple_of(LINE).unwrap_or(usize::MAX)
}

/// Pieces of scratch, of which each task takes one while it runs: as many as there are tasks at once.
struct ScratchPieces<T>(Mutex<Vec<T>>);

impl<T> ScratchPieces<T> {
    fn new(pieces: impl Iterator<Item = T>) -> ScratchPieces<T> {
        ScratchPieces(Mutex::new(pieces.collect()))
    }

    /// Calls `f` with one of them.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut piece = self.lock().pop().expect("there is one for every thread");
        let result = f(&mut piece);
        self.lock().push(piece);
        result
    }

    // A task that panicked keeps its piece; the others are good.
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a routine is to the CPU.
pub struct Routine {
    row: &'static RoutineRow,
    pub run: fn(RoutineCall<'_>) -> Result<(), FailedCheck>,
    /// How many bytes it needs beside its inputs and output if so many threads share its work.
    pub scratch: fn(&RoutineArgs, usize) -> usize,
}

/// The routine of a row, if there is one here.
pub fn find(row: &RoutineRow) -> Option<&'static Routine> {
    ROUTINES.iter().find(|routine| routine.row == row)
}

static ROUTINES: [Routine; 4] = [
    Routine { row: &CUMSUM, run: scan::cumsum, scratch: scan::scratch },
    Routine { row: &SORT, run: sort::sort, scratch: sort::scratch },
    Routine { row: &ARGSORT, run: sort::argsort, scratch: sort::scratch },
    Routine { row: &SCATTER_ADD, run: scatter::scatter_add, scratch: scatter::scratch },
];

/// An element in memory, and the wider number it is summed in.
trait SummedElem: Copy + Send + Sync {
    const SIZE: usize;
    type Sum: AnyBits + Send + Sync;
    /// Adding it changes nothing.
    const NOTHING: Self::Sum;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn read(bytes: &[u8], idx: usize) -> Self::Sum;
    fn write(bytes: &mut [u8], idx: usize, sum: Self::Sum);
}

macro_rules! stored {
    ($($t:ty, $size:literal, $sum:ty, $nothing:expr, $add:expr, $widen:expr, $narrow:expr;)*) => {$(
        impl SummedElem for $t {
            const SIZE: usize = $size;
            type Sum = $sum;
            const NOTHING: $sum = $nothing;
            fn add(a: $sum, b: $sum) -> $sum {
                $add(a, b)
            }
            fn read(bytes: &[u8], idx: usize) -> $sum {
                $widen(<$t>::from_ne_bytes(bytes.as_chunks().0[idx]))
            }
            fn write(bytes: &mut [u8], idx: usize, sum: $sum) {
                bytes.as_chunks_mut().0[idx] = <$t>::to_ne_bytes($narrow(sum));
            }
        }
    )*};
}

// −0 + x = x for every x, where 0 + −0 would be 0. Integers wrap: what is cut off in the end is what wrapping loses.
stored! {
    f32, 4, f64, -0.0, |a, b| a + b, |v| v as f64, |s| s as f32;
    f16, 2, f64, -0.0, |a, b| a + b, f16::to_f64, crate::dtype::to_f16;
    bf16, 2, f64, -0.0, |a, b| a + b, bf16::to_f64, crate::dtype::to_bf16;
    i32, 4, i64, 0, i64::wrapping_add, |v| v as i64, |s| s as i32;
    u32, 4, i64, 0, i64::wrapping_add, |v| v as i64, |s| s as u32;
    u8, 1, i64, 0, i64::wrapping_add, |v| v as i64, |s| s as u8;
}

/// Calls a generic function for the element a dtype is stored as.
macro_rules! for_stored {
    ($dtype:expr, $function:ident($($arg:expr),*)) => {
        match $dtype {
            DType::F32 => $function::<f32>($($arg),*),
            DType::F16 => $function::<half::f16>($($arg),*),
            DType::BF16 => $function::<half::bf16>($($arg),*),
            DType::I32 => $function::<i32>($($arg),*),
            DType::U32 => $function::<u32>($($arg),*),
            DType::U8 | DType::Bool => $function::<u8>($($arg),*),
        }
    };
}
use for_stored;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    /// Calls `f` with so many bytes of scratch, none of them zero.
    fn with_scratch<R>(size_bytes: usize, f: impl FnOnce(RoutineScratch<'_>) -> R) -> R {
        #[repr(align(64))]
        #[derive(Clone)]
        struct ScratchLine(#[allow(dead_code, reason = "read as scratch")] [u8; LINE]);
        let mut lines = vec![ScratchLine([0xa5; LINE]); size_bytes.div_ceil(LINE)];
        // SAFETY: the lines are that long, and borrowed for the call alone.
        f(unsafe { RoutineScratch::new(lines.as_mut_ptr().cast(), size_bytes) })
    }

    /// Runs a routine on f32 or i32 inputs, given as numbers.
    #[track_caller]
    fn run(
        row: &RoutineRow,
        params: [i32; 2],
        inputs: &[(Vec<f64>, DType, Shape)],
        output: (DType, Shape),
    ) -> Vec<f64> {
        let store = |(values, dtype, _): &(Vec<f64>, DType, Shape)| -> Vec<u8> {
            values
                .iter()
                .flat_map(|v| match dtype {
                    DType::F32 => (*v as f32).to_ne_bytes(),
                    _ => (*v as i32).to_ne_bytes(),
                })
                .collect()
        };
        let bytes: Vec<Vec<u8>> = inputs.iter().map(store).collect();
        let bound: Vec<(&[u8], DType)> = bytes.iter().zip(inputs).map(|(b, i)| (&b[..], i.1)).collect();
        let args = RoutineArgs {
            params,
            input_shapes: inputs.iter().map(|i| i.2).collect(),
            output_shape: output.1,
            check: 3,
        };
        let mut out = vec![0u8; output.1.n_elems() * output.0.size()];
        let routine = find(row).expect("is in the table");
        with_scratch((routine.scratch)(&args, 1), |scratch| {
            let inputs = &bound[..];
            let call =
                RoutineCall { inputs, output: &mut out, output_dtype: output.0, args: &args, scratch, n_workers: 1 };
            (routine.run)(call).expect("indices are in range");
        });
        (0..output.1.n_elems())
            .map(|i| if output.0 == DType::F32 { f32::read(&out, i) } else { i32::read(&out, i) as f64 })
            .collect()
    }

    fn f32s(values: &[f64], shape: Shape) -> (Vec<f64>, DType, Shape) {
        (values.to_vec(), DType::F32, shape)
    }

    #[test]
    fn running_sums_go_along_any_axis() {
        let shape = Shape::from([2, 3]);
        let x = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], shape);
        let along = |axis| run(&CUMSUM, [axis, 0], std::slice::from_ref(&x), (DType::F32, shape));
        assert_eq!(along(1), [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
        assert_eq!(along(0), [1.0, 2.0, 3.0, 5.0, 7.0, 9.0]);
    }

    #[test]
    fn long_running_sums_stay_exact() {
        for shape in [Shape::from([100_000]), Shape::from([50_000, 2])] {
            let x = f32s(&vec![0.1; shape.n_elems()], shape);
            let y = run(&CUMSUM, [0, 0], &[x], (DType::F32, shape));
            let inner = shape.n_elems() / shape[0];
            for (i, y) in y.iter().enumerate() {
                let exact = (i / inner + 1) as f64 * 0.1f32 as f64;
                assert_eq!(*y as f32, exact as f32, "at {i} of {shape}");
            }
        }
    }

    #[test]
    fn sorting_is_stable_and_puts_nan_last() {
        let shape = Shape::from([6]);
        let x = f32s(&[1.0, f64::NAN, -0.0, 0.0, f64::NEG_INFINITY, 1.0], shape);
        let order = |descending| run(&ARGSORT, [0, descending], std::slice::from_ref(&x), (DType::I32, shape));
        assert_eq!(order(0), [4.0, 2.0, 3.0, 0.0, 5.0, 1.0]);
        assert_eq!(order(1), [0.0, 5.0, 2.0, 3.0, 4.0, 1.0]);
        let y = run(&SORT, [0, 0], &[x], (DType::F32, shape));
        assert!(y[1].is_sign_negative() && y[2].is_sign_positive() && y[5].is_nan());
        let columns = Shape::from([3, 2]);
        let x = f32s(&[3.0, 1.0, 1.0, 2.0, 2.0, 3.0], columns);
        assert_eq!(run(&SORT, [0, 0], &[x], (DType::F32, columns)), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    }

    #[test]
    fn scattering_adds_all_that_meet() {
        let shape = Shape::from([2, 3]);
        let index = (vec![2.0, 2.0, 0.0, 1.0], DType::I32, Shape::from([1, 4]));
        let src = f32s(&[1.0, 2.0, 3.0, 4.0], Shape::from([1, 4]));
        let y = run(&SCATTER_ADD, [1, 0], &[f32s(&[10.0; 6], shape), index, src], (DType::F32, shape));
        assert_eq!(y, [13.0, 14.0, 13.0, 10.0, 10.0, 10.0]);
        let index = (vec![1.0, 0.0, 1.0, 1.0], DType::I32, Shape::from([2, 2]));
        let src = f32s(&[1.0, 2.0, 3.0, 4.0], Shape::from([2, 2]));
        let y = run(&SCATTER_ADD, [0, 0], &[f32s(&[0.0; 6], shape), index, src], (DType::F32, shape));
        assert_eq!(y, [0.0, 2.0, 0.0, 4.0, 4.0, 0.0]);
    }

    #[test]
    fn an_index_out_of_range_fails_its_check() {
        let (x, index, src) = ([0u8; 8], [0i32, -1, 7].map(i32::to_ne_bytes).concat(), [0u8; 12]);
        let inputs = [(&x[..], DType::F32), (&index[..], DType::I32), (&src[..], DType::F32)];
        let shapes = [[2], [3], [3]].map(Shape::from).to_vec();
        let args = RoutineArgs { params: [0, 0], input_shapes: shapes, output_shape: Shape::from([2]), check: 3 };
        let mut output = [0u8; 8];
        with_scratch(scatter::scratch(&args, 1), |scratch| {
            let output_dtype = DType::F32;
            let call =
                RoutineCall { inputs: &inputs, output: &mut output, output_dtype, args: &args, scratch, n_workers: 1 };
            assert_eq!(scatter::scatter_add(call), Err(FailedCheck { check: 3, index: -1, bound: 2 }));
        });
    }
}
