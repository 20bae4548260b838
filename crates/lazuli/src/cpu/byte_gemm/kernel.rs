//! Tiles of integer products, summed up in registers: each step multiplies four neighbouring bytes of a row with four of each of
//! 16 columns. The left operand's bytes are signed, the right one's are not, as VNNI wants them. No sum saturates: what does not
//! fit 32 bits wraps.

use super::{LANES, QUAD};
use crate::ops::Isa;

/// Rows of the left operand times neighbouring panels of the right one.
///
/// The caller that runs a function of a [`QuadKernel`] on a tile promises that the processor has the function's instructions; that the
/// tile has as many rows of whole quads and as many panels as the function is for, which nobody writes meanwhile; and that there is room
/// for as many rows of `n_columns` results, which overlap nothing that is read and are used by nobody else.
pub struct ByteTile {
    /// Rows of whole quads of signed bytes, and from row to row.
    pub a: *const u8,
    pub a_pitch: usize,
    pub n_quads: usize,
    /// The first panel: what its sums start with, then its quads.
    pub b: *const u8,
    pub out: *mut i32,
    pub out_pitch: usize,
    /// How many columns of the panels have a result.
    pub n_columns: usize,
}

type QuadTileFn = unsafe fn(&ByteTile);

/// How products of bytes are made with one instruction set.
pub struct QuadKernel {
    pub name: &'static str,
    /// Panels side by side in a tile.
    pub n_panels: usize,
    /// [`tile`] of that many panels, by the number of rows less one.
    pub tiles: &'static [QuadTileFn],
    /// The same of a single panel, for those that are left over.
    pub single: &'static [QuadTileFn],
}

/// Bytes of a panel of so many quads.
pub fn panel_bytes(n_quads: usize) -> usize {
    LANES * 4 + n_quads * LANES * QUAD
}

/// The kernel for so many rows.
pub fn kernel(isa: Isa, has_vnni: bool, n_rows: usize) -> &'static QuadKernel {
    #[cfg(target_arch = "x86_64")]
    match (isa, has_vnni) {
        // Few rows: more panels, so that enough sums are in the making.
        (Isa::Avx512, true) if n_rows <= vnni::FEW.tiles.len() => return &vnni::FEW,
        (Isa::Avx512, true) => return &vnni::MANY,
        (Isa::Avx512 | Isa::Avx2, _) => return &avx2::KERNEL,
        _ => {}
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (isa, has_vnni, n_rows);
    &baseline::KERNEL
}

/// 16 lanes, each of which sums up products of four bytes.
///
/// # Safety
/// The caller of a method is compiled for the instructions of the type and runs on a processor that has them. Pointers are valid for 16
/// words, whatever their alignment.
trait QuadLanes {
    /// Four bytes of each of 16 columns.
    type Codes: Copy;
    /// Four signed bytes of a row.
    type Row: Copy;
    type Sums: Copy;
    unsafe fn zero() -> Self::Sums;
    unsafe fn load(from: *const u8) -> Self::Codes;
    unsafe fn row(quad: u32) -> Self::Row;
    unsafe fn dot(sums: Self::Sums, codes: Self::Codes, row: Self::Row) -> Self::Sums;
    /// The sums of all lanes, added to these.
    unsafe fn add_to(start: *const i32, sums: Self::Sums) -> [i32; LANES];
}

/// A tile of `M` rows and `P` panels.
///
/// # Safety
/// The tile is as [`ByteTile`] says, with `M` rows and `P` panels; the processor has the instructions of `V`, for which
/// the caller is compiled.
#[inline(always)]
unsafe fn tile<V: QuadLanes, const M: usize, const P: usize>(x: &ByteTile) {
    let pitch = panel_bytes(x.n_quads);
    // SAFETY: rows, panels and results are within their memory, as promised by the caller.
    unsafe {
        let mut sums = [[V::zero(); P]; M];
        let codes = x.b.add(LANES * 4);
        for quad in 0..x.n_quads {
            let mut right = [V::load(codes.add(quad * LANES * QUAD)); P];
            for panel in 1..P {
                right[panel] = V::load(codes.add(panel * pitch + quad * LANES * QUAD));
            }
            for row in 0..M {
                let left = x.a.add(row * x.a_pitch + quad * QUAD).cast::<u32>().read_unaligned();
                let left = V::row(left);
                for panel in 0..P {
                    sums[row][panel] = V::dot(sums[row][panel], right[panel], left);
                }
            }
        }
        for panel in 0..P {
            let start = x.b.add(panel * pitch).cast();
            let n = LANES.min(x.n_columns - panel * LANES);
            for row in 0..M {
                let sums = V::add_to(start, sums[row][panel]);
                let to = x.out.add(row * x.out_pitch + panel * LANES);
                if n == LANES {
                    to.cast::<[i32; LANES]>().write_unaligned(sums);
                } else {
                    to.copy_from_nonoverlapping(sums.as_ptr(), n);
                }
            }
        }
    }
}

/// The tiles of one instruction set.
macro_rules! tiles {
    ($isa:ident $lanes:ident $($features:literal)?; $($kernel:ident $name:literal $panels:literal [$($rows:literal)*];)*) => {
        mod $isa {
            use super::*;

            /// # Safety
            /// The tile is as [`ByteTile`] says, with `M` rows and `P` panels; the processor has these features.
            $(#[target_feature(enable = $features)])?
            unsafe fn one<const M: usize, const P: usize>(x: &ByteTile) {
                // SAFETY: as promised by the caller.
                unsafe { tile::<$lanes, M, P>(x) }
            }

            $(pub static $kernel: QuadKernel = QuadKernel {
                name: $name,
                n_panels: $panels,
                tiles: &[$(one::<$rows, $panels>),*],
                single: &[$(one::<$rows, 1>),*],
            };)*
        }
    };
}

#[cfg(target_arch = "x86_64")]
tiles! { vnni DotQuads512 "avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,avx2,fma";
    FEW "VNNI" 4 [1 2 3 4];
    MANY "VNNI" 2 [1 2 3 4 5 6 7 8];
}
#[cfg(target_arch = "x86_64")]
tiles! { avx2 WordPairs256 "avx2,fma";
    KERNEL "AVX2" 1 [1 2 3 4];
}
#[cfg(target_arch = "x86_64")]
tiles! { baseline WordPairs128;
    KERNEL "SSE2" 1 [1 2];
}
#[cfg(not(target_arch = "x86_64"))]
tiles! { baseline PlainQuads;
    KERNEL "plain code" 1 [1 2 3 4];
}

#[cfg(target_arch = "x86_64")]
use x86::{DotQuads512, WordPairs128, WordPairs256};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, QuadLanes};

    /// One vector.
    pub struct DotQuads512;

    // SAFETY (all methods): the caller promises the instructions and the memory.
    #[rustfmt::skip]
    #[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
    impl QuadLanes for DotQuads512 {
        type Codes = __m512i;
        type Row = __m512i;
        type Sums = __m512i;
        #[inline(always)]
        unsafe fn zero() -> __m512i { _mm512_setzero_si512() }
        #[inline(always)]
        unsafe fn load(from: *const u8) -> __m512i { _mm512_loadu_si512(from.cast()) }
        #[inline(always)]
        unsafe fn row(quad: u32) -> __m512i { _mm512_set1_epi32(quad as i32) }
        #[inline(always)]
        unsafe fn dot(sums: __m512i, codes: __m512i, row: __m512i) -> __m512i {
            _mm512_dpbusd_epi32(sums, codes, row)
        }
        #[inline(always)]
        unsafe fn add_to(start: *const i32, sums: __m512i) -> [i32; LANES] {
            std::mem::transmute(_mm512_add_epi32(_mm512_loadu_si512(start.cast()), sums))
        }
    }

    /// Vectors of whole words: bytes are split into even and odd ones of 16 bits each, and pairs of those are multiplied and
    /// summed. A product of 8-bit pairs (`maddubs`) would saturate.
    macro_rules! word_pairs {
        ($lanes:ident, $vector:ty, $n:literal, $zero:ident $load:ident $store:ident $splat:ident $and:ident $add:ident $madd:ident
            $left:ident $right:ident $signed_right:ident) => {
            pub struct $lanes;

            // SAFETY (all methods): the caller promises the instructions and the memory.
            #[rustfmt::skip]
            #[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
            impl QuadLanes for $lanes {
                type Codes = [[$vector; 2]; $n];
                type Row = [$vector; 2];
                type Sums = [$vector; $n];
                #[inline(always)]
                unsafe fn zero() -> [$vector; $n] { [$zero(); $n] }
                #[inline(always)]
                unsafe fn load(from: *const u8) -> [[$vector; 2]; $n] {
                    let mut codes = [[$zero(); 2]; $n];
                    for i in 0..$n {
                        let words = $load(from.cast::<$vector>().add(i));
                        codes[i] = [$and(words, $splat(0x00ff_00ff)), $right::<8>(words)];
                    }
                    codes
                }
                #[inline(always)]
                unsafe fn row(quad: u32) -> [$vector; 2] {
                    let words = $splat(quad as i32);
                    [$signed_right::<8>($left::<8>(words)), $signed_right::<8>(words)]
                }
                #[inline(always)]
                unsafe fn dot(mut sums: [$vector; $n], codes: [[$vector; 2]; $n], row: [$vector; 2]) -> [$vector; $n] {
                    for i in 0..$n {
                        let pairs = $add($madd(codes[i][0], row[0]), $madd(codes[i][1], row[1]));
                        sums[i] = $add(sums[i], pairs);
                    }
                    sums
                }
                #[inline(always)]
                unsafe fn add_to(start: *const i32, sums: [$vector; $n]) -> [i32; LANES] {
                    let mut out = [0i32; LANES];
                    for i in 0..$n {
                        let start = $load(start.cast::<$vector>().add(i));
                        $store(out.as_mut_ptr().cast::<$vector>().add(i), $add(start, sums[i]));
                    }
                    out
                }
            }
        };
    }

    word_pairs!(WordPairs256, __m256i, 2, _mm256_setzero_si256 _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi32 _mm256_and_si256
        _mm256_add_epi32 _mm256_madd_epi16 _mm256_slli_epi16 _mm256_srli_epi16 _mm256_srai_epi16);
    word_pairs!(WordPairs128, __m128i, 4, _mm_setzero_si128 _mm_loadu_si128 _mm_storeu_si128 _mm_set1_epi32 _mm_and_si128
        _mm_add_epi32 _mm_madd_epi16 _mm_slli_epi16 _mm_srli_epi16 _mm_srai_epi16);
}

/// Plain code, for other processors than x86: each lane is a word of four bytes.
#[cfg(not(target_arch = "x86_64"))]
struct PlainQuads;

#[cfg(not(target_arch = "x86_64"))]
impl QuadLanes for PlainQuads {
    type Codes = [u32; LANES];
    type Row = [i32; QUAD];
    type Sums = [i32; LANES];

    #[inline(always)]
    unsafe fn zero() -> [i32; LANES] {
        [0; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [u32; LANES] {
        // SAFETY: as promised by the caller.
        unsafe { from.cast::<[[u8; QUAD]; LANES]>().read_unaligned() }.map(u32::from_le_bytes)
    }

    #[inline(always)]
    unsafe fn row(quad: u32) -> [i32; QUAD] {
        quad.to_le_bytes().map(|byte| byte as i8 as i32)
    }

    #[inline(always)]
    unsafe fn dot(mut sums: [i32; LANES], codes: [u32; LANES], row: [i32; QUAD]) -> [i32; LANES] {
        for (sum, word) in sums.iter_mut().zip(codes) {
            let byte = |i: usize| (word >> (8 * i) & 0xff) as i32 * row[i];
            *sum = sum.wrapping_add(byte(0) + byte(1) + byte(2) + byte(3));
        }
        sums
    }

    #[inline(always)]
    unsafe fn add_to(start: *const i32, sums: [i32; LANES]) -> [i32; LANES] {
        // SAFETY: as promised by the caller.
        let start = unsafe { start.cast::<[i32; LANES]>().read_unaligned() };
        std::array::from_fn(|i| start[i].wrapping_add(sums[i]))
    }
}
