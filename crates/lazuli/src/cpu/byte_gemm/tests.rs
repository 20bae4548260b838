//! Tests: sums of products of any bytes equal those of integers that wrap, bit for bit, with every instruction set, however
//! operands lie and whatever becomes of the sums.

use std::ops::Range;

use super::kernel::kernel;
use super::{BLOCK_ROWS, ByteGemm, ByteMemory, ByteOut, ByteResults};
use crate::cpu::gemm::PackBuffers;
use crate::kernel::{AxisList, OperandArgs};
use crate::ops::{Isa, has_vnni, isas};

/// Every kernel of this machine.
fn kernels() -> Vec<(Isa, bool)> {
    let vnni = has_vnni().then_some((Isa::Avx512, true));
    isas().map(|isa| (isa, false)).chain(vnni).collect()
}

/// Bytes, half of them the largest or the smallest.
fn bytes(n: usize, seed: usize) -> Vec<u8> {
    let byte = |i: usize| {
        let r = (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
        if r.is_multiple_of(2) { (r >> 1) as u8 } else { (255 * (r >> 2 & 1) as u8) | (255 * (r >> 3 & 1) as u8) }
    };
    (0..n).map(byte).collect()
}

fn dense(rows: usize, cols: usize, by_columns: bool) -> OperandArgs {
    let (down, across) = if by_columns { (1, rows as isize) } else { (cols as isize, 1) };
    let (rows, cols) = (AxisList::single(rows, down), AxisList::single(cols, across));
    OperandArgs { batch: Vec::new(), rows, cols, offset: 0 }
}

/// The product of these operands, as the results of rows or block by block.
fn product(
    gemm: &ByteGemm,
    (a, a_lies): (&[u8], &OperandArgs),
    (b, b_lies): (&[u8], &OperandArgs),
    bare: bool,
) -> Vec<i32> {
    let ByteGemm { m, n, .. } = *gemm;
    let (mut packed, mut room) = (vec![0u32; gemm.packed_len()], vec![0f32; gemm.room()]);
    let mut out = vec![i32::MIN; m * n];
    let results = ByteResults(out.as_mut_ptr());
    let address = out.as_mut_ptr() as usize;
    let hand_over = |rows: Range<usize>, columns: Range<usize>, sums: *const u32| {
        for (i, row) in rows.enumerate() {
            for (j, column) in columns.clone().enumerate() {
                // SAFETY: blocks have as many sums and are within the result.
                unsafe { *(address as *mut i32).add(row * n + column) = *sums.add(i * columns.len() + j) as i32 };
            }
        }
    };
    let packed = packed.as_mut_ptr().cast();
    let rooms = PackBuffers { first: room.as_mut_ptr(), size: room.len() };
    // SAFETY: operands lie as they say, and there is as much memory as is asked for.
    unsafe {
        gemm.pack(b.as_ptr(), b_lies, packed);
        let memory = ByteMemory { a: a.as_ptr(), a_lies, packed, rooms };
        gemm.run(memory, gemm.tasks(3), if bare { ByteOut::Results(results) } else { ByteOut::Blocks(&hand_over) });
    }
    out
}

#[test]
fn sums_of_any_bytes_are_exact() {
    let sizes =
        [[1, 1, 1], [1, 7, 100], [3, 64, 33], [5, 130, 16], [8, 4, 31], [33, 259, 70], [70, 17, 1000], [2, 70_000, 5]];
    for [m, k, n] in sizes {
        let (a, b) = (bytes(m * k, 1), bytes(k * n, 7 * m));
        for by_columns in [false, true] {
            let (a_lies, b_lies) = (dense(m, k, by_columns), dense(k, n, by_columns));
            let at = |lies: &OperandArgs, i: usize, j: usize| (lies.rows.at(i) + lies.cols.at(j)) as usize;
            let sum = |i: usize, j: usize| {
                let terms = (0..k).map(|l| a[at(&a_lies, i, l)] as i64 * b[at(&b_lies, l, j)] as i64);
                terms.sum::<i64>() as i32
            };
            let expected: Vec<i32> = (0..m * n).map(|i| sum(i / n, i % n)).collect();
            for (isa, has_vnni) in kernels() {
                let gemm = ByteGemm { m, k, n, kernel: kernel(isa, has_vnni, m) };
                for bare in [false, true] {
                    let y = product(&gemm, (&a, &a_lies), (&b, &b_lies), bare);
                    assert_eq!(y, expected, "{m} × {k} × {n}, {isa:?}, VNNI {has_vnni}, by columns {by_columns}");
                }
            }
        }
    }
}

#[test]
fn windows_are_read_by_lists_of_axes() {
    // Windows of 3 elements, at every second place of each of 2 lines of 40.
    let (line, places) = (40, 19);
    let windows = OperandArgs {
        batch: Vec::new(),
        rows: AxisList::of([(2, line), (3, 1)].into_iter()),
        cols: AxisList::single(places, 2),
        offset: 0,
    };
    let (m, k) = (BLOCK_ROWS + 2, 6);
    let (a, b) = (bytes(m * k, 3), bytes(2 * line as usize, 5));
    for (isa, has_vnni) in kernels() {
        let gemm = ByteGemm { m, k, n: places, kernel: kernel(isa, has_vnni, m) };
        let y = product(&gemm, (&a, &dense(m, k, false)), (&b, &windows), true);
        let of = |i: usize, p: usize, l: usize| a[i * k + l] as i32 * b[l / 3 * 40 + 2 * p + l % 3] as i32;
        let expected: Vec<i32> = (0..m * places).map(|i| (0..k).map(|l| of(i / places, i % places, l)).sum()).collect();
        assert_eq!(y, expected, "{isa:?}, VNNI {has_vnni}");
    }
}
