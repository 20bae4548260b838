//! A few rows times 16 rows of blocks, by products of bytes: codes, which have no sign, times digits, which have one. A lane
//! is a row of the blocks; a word of digits serves all lanes. Compiled for AVX-512 with VNNI and for AVX2.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use super::digits::{CHUNK, DigitChunk};
use crate::blocks::{BlockFormat, ROWS, SubOffsets, TileLayout};

/// How far ahead tiles are prefetched, in bytes: the hardware's prefetcher stops at the ends of pages.
const PREFETCH: usize = 6 << 10;

/// Rows of digits that are multiplied together.
pub const ABREAST: usize = 4;

/// The tiles of 16 rows, and the digits that they are multiplied with.
///
/// The caller that runs a kernel on a task promises that the processor has the kernel's instructions; that the kernel is for the tiles'
/// format and for the task's number of digits and rows; that `n_tiles` tiles, and in every row the digits of their chunks, can be read;
/// and that nobody writes either meanwhile.
pub struct ByteTask {
    pub layout: TileLayout,
    /// The first tile, and how many follow.
    pub tiles: *const u8,
    pub n_tiles: usize,
    /// The digits of one row, or of four, and from one row to the next.
    pub x: *const DigitChunk,
    pub x_pitch: usize,
}

/// Sums of 16 rows of blocks, for each row of digits.
pub type GroupSums = [[f32; ROWS]; ABREAST];

/// A kernel for one row of digits, or for four.
pub type ByteKernel = unsafe fn(&ByteTask, &mut GroupSums);

/// The kernel for a format, a number of digits and rows; None if there is no such format.
pub fn kernel(format: &BlockFormat, n_digits: usize, m: usize, has_vnni: bool) -> Option<ByteKernel> {
    let (low, high) = format.code_bits();
    let versions: [[[ByteKernel; 2]; 3]; 2] = match (low, high, format.n_subs()) {
        (4, 0, 1) => [vnni::all::<4, 0, 1, 1>(), avx2::all::<4, 0, 1, 1>()],
        (4, 1, 1) => [vnni::all::<4, 1, 1, 1>(), avx2::all::<4, 1, 1, 1>()],
        (8, 0, 1) => [vnni::all::<8, 0, 1, 1>(), avx2::all::<8, 0, 1, 1>()],
        (4, 0, 8) => [vnni::all::<4, 0, 8, 1>(), avx2::all::<4, 0, 8, 1>()],
        (4, 1, 8) => [vnni::all::<4, 1, 8, 1>(), avx2::all::<4, 1, 8, 1>()],
        (4, 2, 16) => [vnni::all::<4, 2, 8, 2>(), avx2::all::<4, 2, 8, 2>()],
        (2, 0, 16) => [vnni::all::<2, 0, 8, 2>(), avx2::all::<2, 0, 8, 2>()],
        (2, 1, 16) => [vnni::all::<2, 1, 8, 2>(), avx2::all::<2, 1, 8, 2>()],
        _ => return None,
    };
    Some(versions[!has_vnni as usize][n_digits - 1][(m > 1) as usize])
}

/// 16 lanes of words, and of floats, with what is done to them.
///
/// # Safety
/// The caller of a method is compiled for the instructions of the type and runs on a processor that has them. Pointers are valid for 16
/// words ([`ByteLanes::load`]), halves, bytes or floats, whatever their alignment.
trait ByteLanes {
    type Words: Copy;
    type Floats: Copy;
    unsafe fn load(from: *const u8) -> Self::Words;
    unsafe fn splat(x: i32) -> Self::Words;
    unsafe fn and(x: Self::Words, mask: u32) -> Self::Words;
    unsafe fn or(x: Self::Words, y: Self::Words) -> Self::Words;
    unsafe fn add(x: Self::Words, y: Self::Words) -> Self::Words;
    unsafe fn up<const BITS: u32>(x: Self::Words) -> Self::Words;
    /// To the right by a number of bits that is known when the loop is unrolled.
    unsafe fn down(x: Self::Words, bits: u32) -> Self::Words;
    /// Adds the four products of each lane's bytes, of at most `BITS` bits, and the bytes of `x`.
    unsafe fn dot<const BITS: usize>(sums: Self::Words, codes: Self::Words, x: u32) -> Self::Words;
    unsafe fn floats(x: Self::Words) -> Self::Floats;
    unsafe fn halves(from: *const u8) -> Self::Floats;
    unsafe fn signed_bytes(from: *const u8) -> Self::Words;
    unsafe fn bytes(from: *const u8) -> Self::Words;
    unsafe fn float(x: f32) -> Self::Floats;
    unsafe fn mul(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// `x · y + z`, rounded once.
    unsafe fn mul_add(x: Self::Floats, y: Self::Floats, z: Self::Floats) -> Self::Floats;
    unsafe fn store(x: Self::Floats, to: *mut f32);
}

/// The bits of a plane of a chunk of 16 rows: four neighbours a word.
///
/// # Safety
/// The plane has this chunk of 16 rows, with `BITS` bits an element; the processor has the instructions of `V`, for
/// which the caller is compiled.
#[inline(always)]
unsafe fn plane<V: ByteLanes, const BITS: usize>(plane: *const u8, chunk: usize) -> [V::Words; CHUNK / 4] {
    let (per_word, mask) = (8 / BITS, (0xff >> (8 - BITS)) * 0x0101_0101);
    // SAFETY: as promised by the caller.
    unsafe {
        let mut codes = [V::splat(0); CHUNK / 4];
        // A chunk has as many words as an element has bits.
        for word in 0..BITS {
            let from = plane.add((chunk * BITS + word) * ROWS * 4);
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH).cast());
            let loaded = V::load(from);
            for i in 0..per_word {
                let shifted = if i == 0 { loaded } else { V::down(loaded, (i * BITS) as u32) };
                codes[word * per_word + i] = if BITS == 8 { shifted } else { V::and(shifted, mask) };
            }
        }
        codes
    }
}

/// The codes of a chunk of 16 rows: four neighbours a word.
///
/// # Safety
/// The tile is of this layout, with planes of `LOW` and `HIGH` bits, and has this chunk; the processor has the
/// instructions of `V`, for which the caller is compiled.
#[inline(always)]
unsafe fn codes<V: ByteLanes, const LOW: usize, const HIGH: usize>(
    tile: *const u8,
    layout: &TileLayout,
    chunk: usize,
) -> [V::Words; CHUNK / 4] {
    // SAFETY: as promised by the caller.
    unsafe {
        let mut codes = plane::<V, LOW>(tile.add(layout.low), chunk);
        let high = layout.high.unwrap_or_default();
        let high = match HIGH {
            0 => return codes,
            1 => plane::<V, 1>(tile.add(high), chunk),
            _ => plane::<V, 2>(tile.add(high), chunk),
        };
        for i in 0..CHUNK / 4 {
            codes[i] = V::or(codes[i], if LOW == 2 { V::up::<2>(high[i]) } else { V::up::<4>(high[i]) });
        }
        codes
    }
}

/// A block has so many chunks, of which each has one scale, or one for each half.
///
/// # Safety
/// The task is as [`ByteTask`] says; the processor has the instructions of `V`, for which the caller is compiled.
#[inline(always)]
unsafe fn group<
    V: ByteLanes,
    const LOW: usize,
    const HIGH: usize,
    const CHUNKS: usize,
    const HALVES: usize,
    const DIGITS: usize,
    const M: usize,
>(
    task: &ByteTask,
    sums: &mut GroupSums,
) {
    let layout = &task.layout;
    // SAFETY: as promised by the caller.
    unsafe {
        let mut totals = [V::float(0.0); M];
        for at in 0..task.n_tiles {
            let tile = task.tiles.add(at * layout.size_bytes);
            _mm_prefetch::<_MM_HINT_T0>(tile.wrapping_add(PREFETCH).cast());
            let (mut scaled, mut shifted) = ([V::float(0.0); M], [V::float(0.0); M]);
            for chunk in 0..CHUNKS {
                let codes = codes::<V, LOW, HIGH>(tile, layout, chunk);
                for half in 0..HALVES {
                    let sub = chunk * HALVES + half;
                    let mut factor = V::float(1.0);
                    let mut sub_offset = None;
                    if let Some(scales) = layout.sub_scales.filter(|_| CHUNKS > 1) {
                        let from = tile.add(scales + sub * ROWS);
                        factor = match layout.sub_offsets {
                            SubOffsets::WithScales => {
                                sub_offset = Some(V::floats(V::down(V::bytes(from), 4)));
                                V::floats(V::and(V::bytes(from), 15))
                            }
                            SubOffsets::At(offsets) => {
                                sub_offset = Some(V::floats(V::bytes(tile.add(offsets + sub * ROWS))));
                                V::floats(V::bytes(from))
                            }
                            SubOffsets::None => V::floats(V::signed_bytes(from)),
                        };
                    }
                    for m in 0..M {
                        let x = &*task.x.add(m * task.x_pitch + at * CHUNKS + chunk);
                        let mut acc = [V::splat(0); DIGITS];
                        for digit in 0..DIGITS {
                            acc[digit] = V::splat(x.start[half][digit]);
                        }
                        for i in 0..CHUNK / 4 / HALVES {
                            let quad = half * (CHUNK / 4 / HALVES) + i;
                            for digit in 0..DIGITS {
                                acc[digit] = V::dot::<LOW>(acc[digit], codes[quad], x.quads[digit][quad]);
                            }
                        }
                        // Two digits together are below 2²⁷; the third is added with one rounding.
                        let low = match DIGITS {
                            1 => V::floats(acc[0]),
                            _ => V::floats(V::add(V::up::<8>(acc[1]), acc[0])),
                        };
                        let sum = match DIGITS {
                            3 => V::mul_add(V::floats(acc[2]), V::float(65536.0), low),
                            _ => low,
                        };
                        let unit = if CHUNKS > 1 { V::mul(factor, V::float(x.unit)) } else { V::float(x.unit) };
                        scaled[m] = V::mul_add(sum, unit, scaled[m]);
                        if let Some(offset) = sub_offset {
                            shifted[m] = V::mul_add(offset, V::float(-x.sum[half]), shifted[m]);
                        } else if layout.offsets.is_some() {
                            shifted[m] = V::float(x.sum[half]);
                        }
                    }
                }
            }
            let scale = V::halves(tile);
            for m in 0..M {
                totals[m] = V::mul_add(scaled[m], scale, totals[m]);
                if let Some(offsets) = layout.offsets {
                    totals[m] = V::mul_add(shifted[m], V::halves(tile.add(offsets)), totals[m]);
                }
            }
        }
        for m in 0..M {
            V::store(totals[m], sums[m].as_mut_ptr());
        }
    }
}

/// The kernels of one instruction set: per number of digits, for one row and for four.
macro_rules! versions {
    ($isa:ident $lanes:ident $features:literal) => {
        mod $isa {
            use super::*;

            pub const fn all<const LOW: usize, const HIGH: usize, const CHUNKS: usize, const HALVES: usize>()
            -> [[ByteKernel; 2]; 3] {
                [
                    [one::<LOW, HIGH, CHUNKS, HALVES, 1, 1>, one::<LOW, HIGH, CHUNKS, HALVES, 1, ABREAST>],
                    [one::<LOW, HIGH, CHUNKS, HALVES, 2, 1>, one::<LOW, HIGH, CHUNKS, HALVES, 2, ABREAST>],
                    [one::<LOW, HIGH, CHUNKS, HALVES, 3, 1>, one::<LOW, HIGH, CHUNKS, HALVES, 3, ABREAST>],
                ]
            }

            /// # Safety
            /// The task is as [`ByteTask`] says; the processor has these features.
            #[target_feature(enable = $features)]
            unsafe fn one<
                const LOW: usize,
                const HIGH: usize,
                const CHUNKS: usize,
                const HALVES: usize,
                const DIGITS: usize,
                const M: usize,
            >(
                task: &ByteTask,
                sums: &mut GroupSums,
            ) {
                // SAFETY: as promised by the caller.
                unsafe { group::<$lanes, LOW, HIGH, CHUNKS, HALVES, DIGITS, M>(task, sums) }
            }
        }
    };
}

versions!(vnni Lanes512 "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,avx2,fma,f16c");
versions!(avx2 Lanes256 "avx2,fma,f16c");

/// One vector of 16 lanes.
struct Lanes512;

// SAFETY (all methods): the caller promises the instructions and the memory.
#[rustfmt::skip]
#[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
impl ByteLanes for Lanes512 {
    type Words = __m512i;
    type Floats = __m512;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i { _mm512_loadu_si512(from.cast()) }
    #[inline(always)]
    unsafe fn splat(x: i32) -> __m512i { _mm512_set1_epi32(x) }
    #[inline(always)]
    unsafe fn and(x: __m512i, mask: u32) -> __m512i { _mm512_and_si512(x, _mm512_set1_epi32(mask as i32)) }
    #[inline(always)]
    unsafe fn or(x: __m512i, y: __m512i) -> __m512i { _mm512_or_si512(x, y) }
    #[inline(always)]
    unsafe fn add(x: __m512i, y: __m512i) -> __m512i { _mm512_add_epi32(x, y) }
    #[inline(always)]
    unsafe fn up<const BITS: u32>(x: __m512i) -> __m512i { _mm512_slli_epi32::<BITS>(x) }
    #[inline(always)]
    unsafe fn down(x: __m512i, bits: u32) -> __m512i { _mm512_srl_epi32(x, _mm_cvtsi32_si128(bits as i32)) }
    #[inline(always)]
    unsafe fn dot<const BITS: usize>(sums: __m512i, codes: __m512i, x: u32) -> __m512i {
        _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(x as i32))
    }
    #[inline(always)]
    unsafe fn floats(x: __m512i) -> __m512 { _mm512_cvtepi32_ps(x) }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    #[inline(always)]
    unsafe fn signed_bytes(from: *const u8) -> __m512i { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m512i { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    #[inline(always)]
    unsafe fn float(x: f32) -> __m512 { _mm512_set1_ps(x) }
    #[inline(always)]
    unsafe fn mul(x: __m512, y: __m512) -> __m512 { _mm512_mul_ps(x, y) }
    #[inline(always)]
    unsafe fn mul_add(x: __m512, y: __m512, z: __m512) -> __m512 { _mm512_fmadd_ps(x, y, z) }
    #[inline(always)]
    unsafe fn store(x: __m512, to: *mut f32) { _mm512_storeu_ps(to, x) }
}

/// Two vectors of eight lanes.
struct Lanes256;

// SAFETY (all methods): the caller promises the instructions and the memory.
#[rustfmt::skip]
#[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
impl ByteLanes for Lanes256 {
    type Words = [__m256i; 2];
    type Floats = [__m256; 2];
    #[inline(always)]
    unsafe fn load(from: *const u8) -> [__m256i; 2] {
        [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
    }
    #[inline(always)]
    unsafe fn splat(x: i32) -> [__m256i; 2] { [_mm256_set1_epi32(x); 2] }
    #[inline(always)]
    unsafe fn and(x: [__m256i; 2], mask: u32) -> [__m256i; 2] {
        let mask = _mm256_set1_epi32(mask as i32); [_mm256_and_si256(x[0], mask), _mm256_and_si256(x[1], mask)]
    }
    #[inline(always)]
    unsafe fn or(x: [__m256i; 2], y: [__m256i; 2]) -> [__m256i; 2] {
        [_mm256_or_si256(x[0], y[0]), _mm256_or_si256(x[1], y[1])]
    }
    #[inline(always)]
    unsafe fn add(x: [__m256i; 2], y: [__m256i; 2]) -> [__m256i; 2] {
        [_mm256_add_epi32(x[0], y[0]), _mm256_add_epi32(x[1], y[1])]
    }
    #[inline(always)]
    unsafe fn up<const BITS: u32>(x: [__m256i; 2]) -> [__m256i; 2] {
        let by = _mm_cvtsi32_si128(BITS as i32); [_mm256_sll_epi32(x[0], by), _mm256_sll_epi32(x[1], by)]
    }
    #[inline(always)]
    unsafe fn down(x: [__m256i; 2], bits: u32) -> [__m256i; 2] {
        let by = _mm_cvtsi32_si128(bits as i32); [_mm256_srl_epi32(x[0], by), _mm256_srl_epi32(x[1], by)]
    }
    #[inline(always)]
    unsafe fn dot<const BITS: usize>(sums: [__m256i; 2], codes: [__m256i; 2], x: u32) -> [__m256i; 2] {
        let (x, ones) = (_mm256_set1_epi32(x as i32), _mm256_set1_epi16(1));
        let one = |sums: __m256i, codes: __m256i| {
            if BITS < 8 {
                return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), ones));
            }
            // The sum of two products of eight bits may not fit 16 bits, so the highest bit is multiplied separately, halved.
            let low = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
            let high = _mm256_and_si256(_mm256_srli_epi32::<1>(codes), _mm256_set1_epi8(0x40));
            let low = _mm256_madd_epi16(_mm256_maddubs_epi16(low, x), ones);
            let high = _mm256_madd_epi16(_mm256_maddubs_epi16(high, x), _mm256_set1_epi16(2));
            _mm256_add_epi32(sums, _mm256_add_epi32(low, high))
        };
        [one(sums[0], codes[0]), one(sums[1], codes[1])]
    }
    #[inline(always)]
    unsafe fn floats(x: [__m256i; 2]) -> [__m256; 2] { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> [__m256; 2] {
        [_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast()))]
    }
    #[inline(always)]
    unsafe fn signed_bytes(from: *const u8) -> [__m256i; 2] {
        [_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())), _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast()))]
    }
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> [__m256i; 2] {
        [_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())), _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8).cast()))]
    }
    #[inline(always)]
    unsafe fn float(x: f32) -> [__m256; 2] { [_mm256_set1_ps(x); 2] }
    #[inline(always)]
    unsafe fn mul(x: [__m256; 2], y: [__m256; 2]) -> [__m256; 2] {
        [_mm256_mul_ps(x[0], y[0]), _mm256_mul_ps(x[1], y[1])]
    }
    #[inline(always)]
    unsafe fn mul_add(x: [__m256; 2], y: [__m256; 2], z: [__m256; 2]) -> [__m256; 2] {
        [_mm256_fmadd_ps(x[0], y[0], z[0]), _mm256_fmadd_ps(x[1], y[1], z[1])]
    }
    #[inline(always)]
    unsafe fn store(x: [__m256; 2], to: *mut f32) {
        _mm256_storeu_ps(to, x[0]); _mm256_storeu_ps(to.add(8), x[1])
    }
}
