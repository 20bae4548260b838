//! Vectors of `f32` as a type, for the few loops that LLVM would not write well by itself: it keeps to half of the widest
//! vectors. What a method does is said by its scalar twin, whose bits it gives.

/// Several `f32` side by side.
///
/// # Safety
/// The methods may be called only inside functions compiled for the instruction set that the type belongs to.
#[cfg(target_arch = "x86_64")]
pub unsafe trait Vector: Copy {
    /// How many.
    const LANES: usize;
    /// `LANES` values from here on.
    unsafe fn load(from: *const f32) -> Self;
    /// One value, in every lane.
    unsafe fn splat(x: f32) -> Self;
    /// Writes them.
    unsafe fn store(self, to: *mut f32);
    /// Writes them past the caches, to an address that is a multiple of their size.
    unsafe fn stream(self, to: *mut f32);
    /// `self + y`.
    unsafe fn add(self, y: Self) -> Self;
    /// `self − y`.
    unsafe fn sub(self, y: Self) -> Self;
    /// `self · y`.
    unsafe fn mul(self, y: Self) -> Self;
    /// `self / y`.
    unsafe fn div(self, y: Self) -> Self;
    /// `self · y + z`, rounded once.
    unsafe fn fma(self, y: Self, z: Self) -> Self;
    /// `if self < y { self } else { y }`.
    unsafe fn below(self, y: Self) -> Self;
    /// `if self > y { self } else { y }`.
    unsafe fn above(self, y: Self) -> Self;
    /// `y` where that is NaN, else `self`.
    unsafe fn or_nan(self, y: Self) -> Self;
    /// `self · 2ⁿ` from `n + ROUND`, rounded once; −150 ≤ n ≤ 128.
    unsafe fn scale(self, t: Self) -> Self;
}

/// Asks for the memory around an address, which need not exist.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn fetch<T>(at: *const T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint; it never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use crate::ops::math::ROUND;
    use std::arch::x86_64::*;

    /// Sixteen, with AVX-512.
    #[derive(Clone, Copy)]
    pub struct F32x16(__m512);

    /// Eight, with AVX2 and FMA.
    #[derive(Clone, Copy)]
    pub struct F32x8(__m256);

    // SAFETY: the promise is the callers'.
    #[rustfmt::skip]
    #[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
    unsafe impl Vector for F32x16 {
        const LANES: usize = 16;
        #[inline(always)] unsafe fn load(from: *const f32) -> Self { Self(_mm512_loadu_ps(from)) }
        #[inline(always)] unsafe fn splat(x: f32) -> Self { Self(_mm512_set1_ps(x)) }
        #[inline(always)] unsafe fn store(self, to: *mut f32) { _mm512_storeu_ps(to, self.0) }
        #[inline(always)] unsafe fn stream(self, to: *mut f32) { _mm512_stream_ps(to, self.0) }
        #[inline(always)] unsafe fn add(self, y: Self) -> Self { Self(_mm512_add_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn sub(self, y: Self) -> Self { Self(_mm512_sub_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn mul(self, y: Self) -> Self { Self(_mm512_mul_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn div(self, y: Self) -> Self { Self(_mm512_div_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn fma(self, y: Self, z: Self) -> Self { Self(_mm512_fmadd_ps(self.0, y.0, z.0)) }
        #[inline(always)] unsafe fn below(self, y: Self) -> Self { Self(_mm512_min_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn above(self, y: Self) -> Self { Self(_mm512_max_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn or_nan(self, y: Self) -> Self {
            Self(_mm512_mask_mov_ps(self.0, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(y.0, y.0), y.0))
        }
        #[inline(always)] unsafe fn scale(self, t: Self) -> Self {
            Self(_mm512_scalef_ps(self.0, _mm512_sub_ps(t.0, _mm512_set1_ps(ROUND))))
        }
    }

    // SAFETY: the promise is the callers'.
    #[rustfmt::skip]
    #[allow(unsafe_op_in_unsafe_fn, reason = "every line is an instruction of the set that callers promise")]
    unsafe impl Vector for F32x8 {
        const LANES: usize = 8;
        #[inline(always)] unsafe fn load(from: *const f32) -> Self { Self(_mm256_loadu_ps(from)) }
        #[inline(always)] unsafe fn splat(x: f32) -> Self { Self(_mm256_set1_ps(x)) }
        #[inline(always)] unsafe fn store(self, to: *mut f32) { _mm256_storeu_ps(to, self.0) }
        #[inline(always)] unsafe fn stream(self, to: *mut f32) { _mm256_stream_ps(to, self.0) }
        #[inline(always)] unsafe fn add(self, y: Self) -> Self { Self(_mm256_add_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn sub(self, y: Self) -> Self { Self(_mm256_sub_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn mul(self, y: Self) -> Self { Self(_mm256_mul_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn div(self, y: Self) -> Self { Self(_mm256_div_ps(self.0, y.0)) }
        #[inline(always)] unsafe fn fma(self, y: Self, z: Self) -> Self { Self(_mm256_fmadd_ps(self.0, y.0, z.0)) }
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
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{F32x8, F32x16};
