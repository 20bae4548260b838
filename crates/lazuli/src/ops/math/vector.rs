//! Vectors of `f32` as a type, for the few loops that LLVM would not write well by itself: it keeps to half of the widest
//! vectors. What a method does is said by its scalar twin, whose bits it gives.

use half::{bf16, f16};

/// Several `f32` side by side, and what a product needs of them.
///
/// # Safety
/// The caller of a method of this trait, of [`Vector`] or of [`SumEach`] is compiled for the instruction set that the type belongs
/// to, and runs on a processor that has it. Pointers are valid for reading or writing as many elements as the method's first line says,
/// and aligned for one element; [`Vector::stream`] wants more. An implementation touches no other memory.
pub unsafe trait Floats: Copy {
    /// How many.
    const LANES: usize;
    /// `LANES` values from here on.
    unsafe fn load(from: *const f32) -> Self;
    /// `LANES` of `f16`, widened.
    unsafe fn load_f16(from: *const f16) -> Self;
    /// `LANES` of `bf16`, widened.
    unsafe fn load_bf16(from: *const bf16) -> Self;
    /// One value, in every lane.
    unsafe fn splat(x: f32) -> Self;
    /// Writes all `LANES`.
    unsafe fn store(self, to: *mut f32);
    /// The first `n` from here on, and zeros; `n ≤ LANES`. Others are not touched.
    unsafe fn load_first(from: *const f32, n: usize) -> Self;
    /// Every second of the `2 · LANES − 1` values from here on.
    unsafe fn load_even(from: *const f32) -> Self;
    /// Writes the first `n`; `n ≤ LANES`.
    unsafe fn store_first(self, to: *mut f32, n: usize);
    /// `self + y`.
    unsafe fn add(self, y: Self) -> Self;
    /// `self · y + z`, rounded once if the machine can.
    unsafe fn fma(self, y: Self, z: Self) -> Self;
}

/// What else the loops for wide vectors do with them.
///
/// # Safety
/// As for [`Floats`].
#[cfg(target_arch = "x86_64")]
pub unsafe trait Vector: Floats {
    /// Writes them past the caches, to an address that is a multiple of their size.
    unsafe fn stream(self, to: *mut f32);
    /// `self − y`.
    unsafe fn sub(self, y: Self) -> Self;
    /// `self · y`.
    unsafe fn mul(self, y: Self) -> Self;
    /// `self / y`.
    unsafe fn div(self, y: Self) -> Self;
    /// `√self`.
    unsafe fn sqrt(self) -> Self;
    /// `if self < y { self } else { y }`.
    unsafe fn below(self, y: Self) -> Self;
    /// `if self > y { self } else { y }`.
    unsafe fn above(self, y: Self) -> Self;
    /// `y` where that is NaN, else `self`.
    unsafe fn or_nan(self, y: Self) -> Self;
    /// `self · 2ⁿ` from `n + ROUND`, rounded once; −150 ≤ n ≤ 128.
    unsafe fn scale(self, t: Self) -> Self;
    /// Its bits where `mask` has ones.
    unsafe fn masked(self, mask: u32) -> Self;
    /// The bits of both: a number that is not negative takes the sign of `y` from its sign bit.
    unsafe fn or(self, y: Self) -> Self;
    /// `if self < y { then } else { otherwise }`.
    unsafe fn if_below(self, y: Self, then: Self, otherwise: Self) -> Self;
    /// Whether `low ≤ |self| ≤ high` in every lane.
    unsafe fn is_between(self, low: f32, high: f32) -> bool;
    /// The greatest lane, if none is NaN.
    unsafe fn max_lane(self) -> f32;
    /// The sum of all lanes: the upper half onto the lower, again and again.
    unsafe fn sum_lanes(self) -> f32;
}

/// Vectors whose sums of lanes become the lanes of one: of as many as there are lanes.
///
/// # Safety
/// As for [`Floats`].
#[cfg(target_arch = "x86_64")]
pub unsafe trait SumEach<const N: usize>: Floats {
    /// Lane `i` is the sum of all lanes of `x[i]`.
    unsafe fn sum_each(x: [Self; N]) -> Self;
}

/// Asks for the memory around an address, which need not exist.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// [`prefetch`] into the second-level cache alone: for what is read later than all that the first level holds.
#[inline(always)]
pub fn prefetch_l2<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint; it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Four, on any machine.
#[derive(Clone, Copy)]
pub struct F32x4([f32; 4]);

// SAFETY: plain Rust.
#[rustfmt::skip]
#[allow(unsafe_op_in_unsafe_fn, reason = "the memory is the callers' promise")]
unsafe impl Floats for F32x4 {
    const LANES: usize = 4;
    #[inline(always)] unsafe fn load(from: *const f32) -> Self { Self(from.cast::<[f32; 4]>().read_unaligned()) }
    #[inline(always)] unsafe fn load_f16(from: *const f16) -> Self {
        Self(from.cast::<[f16; 4]>().read_unaligned().map(f16::to_f32))
    }
    #[inline(always)] unsafe fn load_bf16(from: *const bf16) -> Self {
        Self(from.cast::<[bf16; 4]>().read_unaligned().map(|x| f32::from_bits((x.to_bits() as u32) << 16)))
    }
    #[inline(always)] unsafe fn splat(x: f32) -> Self { Self([x; 4]) }
    #[inline(always)] unsafe fn store(self, to: *mut f32) { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    #[inline(always)] unsafe fn load_first(from: *const f32, n: usize) -> Self {
        if n == 4 { Self::load(from) } else { Self(std::array::from_fn(|i| if i < n { *from.add(i) } else { 0.0 })) }
    }
    #[inline(always)] unsafe fn load_even(from: *const f32) -> Self { Self(std::array::from_fn(|i| *from.add(2 * i))) }
    #[inline(always)] unsafe fn store_first(self, to: *mut f32, n: usize) {
        self.0.iter().take(n).enumerate().for_each(|(i, x)| *to.add(i) = *x);
    }
    #[inline(always)] unsafe fn add(self, y: Self) -> Self { Self(std::array::from_fn(|i| self.0[i] + y.0[i])) }
    #[inline(always)] unsafe fn fma(self, y: Self, z: Self) -> Self {
        // Without the instruction it is a call for every lane.
        let fma = |x: f32, y, z| if cfg!(target_arch = "aarch64") { x.mul_add(y, z) } else { x * y + z };
        Self(std::array::from_fn(|i| fma(self.0[i], y.0[i], z.0[i])))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use half::{bf16, f16};

    use super::{Floats, SumEach, Vector};
    use crate::ops::math::{ROUND, SIGN};
    use std::arch::x86_64::*;

    /// Sixteen, with AVX-512.
    #[derive(Clone, Copy)]
    pub struct F32x16(__m512);

    /// A mask of the first `n` of eight lanes.
    ///
    /// # Safety
    /// The processor has AVX2, and the caller is compiled for it.
    #[inline(always)]
    #[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
    unsafe fn first(n: usize) -> __m256i {
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
    }

    /// Eight, with AVX2 and FMA.
    #[derive(Clone, Copy)]
    pub struct F32x8(__m256);

    // SAFETY: the promise is the callers'.
    #[rustfmt::skip]
    #[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
    unsafe impl Floats for F32x16 {
        const LANES: usize = 16;
        #[inline(always)] unsafe fn load(from: *const f32) -> Self { Self(_mm512_loadu_ps(from)) }
        #[inline(always)] unsafe fn load_f16(from: *const f16) -> Self {
            Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())))
        }
        #[inline(always)] unsafe fn load_bf16(from: *const bf16) -> Self {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
        #[inline(always)] unsafe fn splat(x: f32) -> Self { Self(_mm512_set1_ps(x)) }
        #[inline(always)] unsafe fn store(self, to: *mut f32) { _mm512_storeu_ps(to, self.0) }
        #[inline(always)] unsafe fn load_first(from: *const f32, n: usize) -> Self {
            Self(_mm512_maskz_loadu_ps(((1u32 << n) - 1) as u16, from))
        }
        #[inline(always)] unsafe fn load_even(from: *const f32) -> Self {
            // The second load begins one earlier, so that it ends with the last value that is wanted.
            let idx = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31);
            Self(_mm512_permutex2var_ps(_mm512_loadu_ps(from), idx, _mm512_loadu_ps(from.add(15))))
        }
        #[inline(always)] unsafe fn store_first(self, to: *mut f32, n: usize) {
            _mm512_mask_storeu_ps(to, ((1u32 << n) - 1) as u16, self.0)
        }
        #[inline(always)] unsafe fn add(self, y: Self) -> Self { Self(_mm512_add_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn fma(self, y: Self, z: Self) -> Self { Self(_mm512_fmadd_ps(self.0, y.0, z.0)) }
    }

    // SAFETY: the promise is the callers'.
    #[rustfmt::skip]
    #[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
    unsafe impl Vector for F32x16 {
        #[inline(always)] unsafe fn stream(self, to: *mut f32) { _mm512_stream_ps(to, self.0) }
        #[inline(always)] unsafe fn sub(self, y: Self) -> Self { Self(_mm512_sub_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn mul(self, y: Self) -> Self { Self(_mm512_mul_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn div(self, y: Self) -> Self { Self(_mm512_div_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn sqrt(self) -> Self { Self(_mm512_sqrt_ps(self.0)) }
        #[inline(always)] unsafe fn below(self, y: Self) -> Self { Self(_mm512_min_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn above(self, y: Self) -> Self { Self(_mm512_max_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn or_nan(self, y: Self) -> Self {
            Self(_mm512_mask_mov_ps(self.0, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(y.0, y.0), y.0))
        }
        #[inline(always)] unsafe fn scale(self, t: Self) -> Self {
            Self(_mm512_scalef_ps(self.0, _mm512_sub_ps(t.0, _mm512_set1_ps(ROUND))))
        }
        #[inline(always)] unsafe fn masked(self, mask: u32) -> Self {
            Self(_mm512_and_ps(self.0, _mm512_castsi512_ps(_mm512_set1_epi32(mask as i32))))
        }
        #[inline(always)] unsafe fn or(self, y: Self) -> Self { Self(_mm512_or_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn if_below(self, y: Self, then: Self, otherwise: Self) -> Self {
            Self(_mm512_mask_mov_ps(otherwise.0, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, y.0), then.0))
        }
        #[inline(always)] unsafe fn is_between(self, low: f32, high: f32) -> bool {
            let x = _mm512_abs_ps(self.0);
            let is_high = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_set1_ps(low));
            _mm512_mask_cmp_ps_mask::<_CMP_LE_OQ>(is_high, x, _mm512_set1_ps(high)) == u16::MAX
        }
        #[inline(always)] unsafe fn max_lane(self) -> f32 { _mm512_reduce_max_ps(self.0) }
        #[inline(always)] unsafe fn sum_lanes(self) -> f32 {
            let high = _mm512_extractf32x8_ps::<1>(self.0);
            F32x8(_mm256_add_ps(_mm512_castps512_ps256(self.0), high)).sum_lanes()
        }
    }

    // SAFETY: the promise is the callers'.
    #[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
    unsafe impl SumEach<16> for F32x16 {
        #[inline(always)]
        unsafe fn sum_each(x: [Self; 16]) -> Self {
            // Of each quarter of two vectors: x₀ + x₂, y₀ + y₂, x₁ + x₃, y₁ + y₃; then of four vectors one number each.
            let twos: [__m512; 8] = std::array::from_fn(|i| {
                let (x, y) = (x[2 * i].0, x[2 * i + 1].0);
                _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y))
            });
            let fours: [__m512; 4] = std::array::from_fn(|i| {
                let (x, y) = (_mm512_castps_pd(twos[2 * i]), _mm512_castps_pd(twos[2 * i + 1]));
                let (low, high) = (_mm512_unpacklo_pd(x, y), _mm512_unpackhi_pd(x, y));
                _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
            });
            // Quarters 0 + 1 and 2 + 3 of two vectors, twice.
            let by_quarters = |x: __m512, y: __m512| {
                let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(x, y);
                _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(x, y))
            };
            Self(by_quarters(by_quarters(fours[0], fours[1]), by_quarters(fours[2], fours[3])))
        }
    }

    // SAFETY: the promise is the callers'.
    #[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
    unsafe impl SumEach<8> for F32x8 {
        #[inline(always)]
        unsafe fn sum_each(x: [Self; 8]) -> Self {
            let twos: [__m256; 4] = std::array::from_fn(|i| _mm256_hadd_ps(x[2 * i].0, x[2 * i + 1].0));
            let (low, high) = (_mm256_hadd_ps(twos[0], twos[1]), _mm256_hadd_ps(twos[2], twos[3]));
            let first_halves = _mm256_permute2f128_ps::<0x20>(low, high);
            Self(_mm256_add_ps(first_halves, _mm256_permute2f128_ps::<0x31>(low, high)))
        }
    }

    // SAFETY: the promise is the callers'.
    #[rustfmt::skip]
    #[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
    unsafe impl Floats for F32x8 {
        const LANES: usize = 8;
        #[inline(always)] unsafe fn load(from: *const f32) -> Self { Self(_mm256_loadu_ps(from)) }
        #[inline(always)] unsafe fn load_f16(from: *const f16) -> Self {
            Self(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())))
        }
        #[inline(always)] unsafe fn load_bf16(from: *const bf16) -> Self {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
        #[inline(always)] unsafe fn splat(x: f32) -> Self { Self(_mm256_set1_ps(x)) }
        #[inline(always)] unsafe fn store(self, to: *mut f32) { _mm256_storeu_ps(to, self.0) }
        #[inline(always)] unsafe fn load_first(from: *const f32, n: usize) -> Self {
            Self(_mm256_maskload_ps(from, first(n)))
        }
        #[inline(always)] unsafe fn load_even(from: *const f32) -> Self {
            // As above; the halves of both are then put in order.
            let mixed = _mm256_shuffle_ps::<0b11_01_10_00>(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(7)));
            Self(_mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(mixed))))
        }
        #[inline(always)] unsafe fn store_first(self, to: *mut f32, n: usize) {
            _mm256_maskstore_ps(to, first(n), self.0)
        }
        #[inline(always)] unsafe fn add(self, y: Self) -> Self { Self(_mm256_add_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn fma(self, y: Self, z: Self) -> Self { Self(_mm256_fmadd_ps(self.0, y.0, z.0)) }
    }

    // SAFETY: the promise is the callers'.
    #[rustfmt::skip]
    #[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
    unsafe impl Vector for F32x8 {
        #[inline(always)] unsafe fn stream(self, to: *mut f32) { _mm256_stream_ps(to, self.0) }
        #[inline(always)] unsafe fn sub(self, y: Self) -> Self { Self(_mm256_sub_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn mul(self, y: Self) -> Self { Self(_mm256_mul_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn div(self, y: Self) -> Self { Self(_mm256_div_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn sqrt(self) -> Self { Self(_mm256_sqrt_ps(self.0)) }
        #[inline(always)] unsafe fn below(self, y: Self) -> Self { Self(_mm256_min_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn above(self, y: Self) -> Self { Self(_mm256_max_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn or_nan(self, y: Self) -> Self {
            Self(_mm256_blendv_ps(self.0, y.0, _mm256_cmp_ps::<_CMP_UNORD_Q>(y.0, y.0)))
        }
        #[inline(always)] unsafe fn scale(self, t: Self) -> Self {
            let n = _mm256_sub_epi32(_mm256_castps_si256(t.0), _mm256_set1_epi32(ROUND.to_bits() as i32));
            let half = _mm256_srai_epi32::<1>(n);
            let power = |n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))));
            Self(_mm256_mul_ps(_mm256_mul_ps(self.0, power(half)), power(_mm256_sub_epi32(n, half))))
        }
        #[inline(always)] unsafe fn masked(self, mask: u32) -> Self {
            Self(_mm256_and_ps(self.0, _mm256_castsi256_ps(_mm256_set1_epi32(mask as i32))))
        }
        #[inline(always)] unsafe fn or(self, y: Self) -> Self { Self(_mm256_or_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn if_below(self, y: Self, then: Self, otherwise: Self) -> Self {
            Self(_mm256_blendv_ps(otherwise.0, then.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, y.0)))
        }
        #[inline(always)] unsafe fn is_between(self, low: f32, high: f32) -> bool {
            let x = self.masked(!SIGN).0;
            let is_high = _mm256_cmp_ps::<_CMP_GE_OQ>(x, _mm256_set1_ps(low));
            let is_low = _mm256_cmp_ps::<_CMP_LE_OQ>(x, _mm256_set1_ps(high));
            _mm256_movemask_ps(_mm256_and_ps(is_high, is_low)) == 0xff
        }
        #[inline(always)] unsafe fn max_lane(self) -> f32 {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
        #[inline(always)] unsafe fn sum_lanes(self) -> f32 {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{F32x8, F32x16};
