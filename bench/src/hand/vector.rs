//! One vector register, three widths. A loop is written once against [`Vector`] as a [`Loop`] and
//! compiled for AVX-512, AVX2 and the baseline; [`run`] picks the widest that this processor has.
//! Everything is `inline(always)`, so that a loop lands inside the function that enables its
//! instructions.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A register of f32 lanes.
///
/// # Safety
/// All methods are unsafe for one reason: the processor must have the instructions, which holds
/// inside [`Loop::run`] when called by [`run`]. Pointers must be valid for `LANES` values.
pub trait Vector: Copy {
    const LANES: usize;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// Stores past the caches; `to` must be aligned to the vector. A [`Vector::fence`] must follow
    /// before another thread reads.
    unsafe fn store_past_caches(self, to: *mut f32);
    /// Asks for a cache line that will be wanted soon; any address will do.
    unsafe fn prefetch(at: *const f32);
    /// Waits for the stores past the caches.
    unsafe fn fence();
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn max(self, other: Self) -> Self;
    /// `self · by + plus`, rounded once where the processor can.
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self;
    unsafe fn round(self) -> Self;
    /// `2^self` for whole numbers in -126..=127.
    unsafe fn exp2_whole(self) -> Self;
    unsafe fn sum_lanes(self) -> f32;
    unsafe fn max_lanes(self) -> f32;
}

/// A loop that is to be compiled for each width. Implementations mark `run` `inline(always)`.
pub trait Loop {
    type Output;

    /// # Safety
    /// The processor must have the instructions of `V`.
    unsafe fn run<V: Vector>(self) -> Self::Output;
}

/// The widest vector that may be used, whatever the processor has.
static MAX_LANES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Keeps to narrower vectors than the processor's, to test them or to see what width is worth.
pub fn use_at_most_lanes(n_lanes: usize) {
    MAX_LANES.store(n_lanes, Ordering::Relaxed);
}

/// Runs a loop with the widest vectors this processor has.
pub fn run<L: Loop>(body: L) -> L::Output {
    #[cfg(target_arch = "x86_64")]
    {
        let max_lanes = MAX_LANES.load(Ordering::Relaxed);
        if max_lanes >= 16 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
            // SAFETY: just detected.
            return unsafe { run_avx512(body) };
        }
        if max_lanes >= 8 && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: just detected.
            return unsafe { run_avx2(body) };
        }
    }
    // SAFETY: plain arrays need no instructions of their own.
    unsafe { body.run::<Plain>() }
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
unsafe fn run_avx512<L: Loop>(body: L) -> L::Output {
    // SAFETY: this function may only be entered where the instructions exist.
    unsafe { body.run::<Avx512>() }
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<L: Loop>(body: L) -> L::Output {
    // SAFETY: this function may only be entered where the instructions exist.
    unsafe { body.run::<Avx2>() }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

// SAFETY of the intrinsics in this module: the contract of `Vector`.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_op_in_unsafe_fn)]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    /// 16 lanes.
    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    /// 8 lanes.
    #[derive(Clone, Copy)]
    pub struct Avx2(__m256);

    #[rustfmt::skip]
    impl Vector for Avx512 {
        const LANES: usize = 16;

        #[inline(always)] unsafe fn splat(value: f32) -> Self { Self(_mm512_set1_ps(value)) }
        #[inline(always)] unsafe fn load(from: *const f32) -> Self { Self(_mm512_loadu_ps(from)) }
        #[inline(always)] unsafe fn store(self, to: *mut f32) { _mm512_storeu_ps(to, self.0) }
        #[inline(always)] unsafe fn store_past_caches(self, to: *mut f32) { _mm512_stream_ps(to, self.0) }
        #[inline(always)] unsafe fn fence() { _mm_sfence() }
        #[inline(always)] unsafe fn prefetch(at: *const f32) { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        #[inline(always)] unsafe fn add(self, other: Self) -> Self { Self(_mm512_add_ps(self.0, other.0)) }
        #[inline(always)] unsafe fn sub(self, other: Self) -> Self { Self(_mm512_sub_ps(self.0, other.0)) }
        #[inline(always)] unsafe fn mul(self, other: Self) -> Self { Self(_mm512_mul_ps(self.0, other.0)) }
        #[inline(always)] unsafe fn max(self, other: Self) -> Self { Self(_mm512_max_ps(self.0, other.0)) }
        #[inline(always)] unsafe fn mul_add(self, by: Self, plus: Self) -> Self { Self(_mm512_fmadd_ps(self.0, by.0, plus.0)) }
        #[inline(always)] unsafe fn round(self) -> Self { Self(_mm512_roundscale_ps::<0>(self.0)) }
        #[inline(always)] unsafe fn exp2_whole(self) -> Self { Self(_mm512_scalef_ps(_mm512_set1_ps(1.0), self.0)) }
        #[inline(always)] unsafe fn sum_lanes(self) -> f32 { _mm512_reduce_add_ps(self.0) }
        #[inline(always)] unsafe fn max_lanes(self) -> f32 { _mm512_reduce_max_ps(self.0) }
    }

    #[rustfmt::skip]
    impl Vector for Avx2 {
        const LANES: usize = 8;

        #[inline(always)] unsafe fn splat(value: f32) -> Self { Self(_mm256_set1_ps(value)) }
        #[inline(always)] unsafe fn load(from: *const f32) -> Self { Self(_mm256_loadu_ps(from)) }
        #[inline(always)] unsafe fn store(self, to: *mut f32) { _mm256_storeu_ps(to, self.0) }
        #[inline(always)] unsafe fn store_past_caches(self, to: *mut f32) { _mm256_stream_ps(to, self.0) }
        #[inline(always)] unsafe fn fence() { _mm_sfence() }
        #[inline(always)] unsafe fn prefetch(at: *const f32) { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        #[inline(always)] unsafe fn add(self, other: Self) -> Self { Self(_mm256_add_ps(self.0, other.0)) }
        #[inline(always)] unsafe fn sub(self, other: Self) -> Self { Self(_mm256_sub_ps(self.0, other.0)) }
        #[inline(always)] unsafe fn mul(self, other: Self) -> Self { Self(_mm256_mul_ps(self.0, other.0)) }
        #[inline(always)] unsafe fn max(self, other: Self) -> Self { Self(_mm256_max_ps(self.0, other.0)) }
        #[inline(always)] unsafe fn mul_add(self, by: Self, plus: Self) -> Self { Self(_mm256_fmadd_ps(self.0, by.0, plus.0)) }
        #[inline(always)] unsafe fn round(self) -> Self { Self(_mm256_round_ps::<0x08>(self.0)) }

        #[inline(always)]
        unsafe fn exp2_whole(self) -> Self {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)))
        }

        #[inline(always)]
        unsafe fn sum_lanes(self) -> f32 {
            let x = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }

        #[inline(always)]
        unsafe fn max_lanes(self) -> f32 {
            let x = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
    }
}

/// 4 lanes as a plain array: the compiler turns it into SSE2 or NEON.
#[derive(Clone, Copy)]
pub struct Plain([f32; 4]);

#[rustfmt::skip]
impl Vector for Plain {
    const LANES: usize = 4;

    #[inline(always)] unsafe fn splat(value: f32) -> Self { Self([value; 4]) }
    // SAFETY: the contract of `Vector`.
    #[inline(always)] unsafe fn load(from: *const f32) -> Self { Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() }) }
    // SAFETY: the contract of `Vector`.
    #[inline(always)] unsafe fn store(self, to: *mut f32) { unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) } }
    // SAFETY: the contract of `Vector`.
    #[inline(always)] unsafe fn store_past_caches(self, to: *mut f32) { unsafe { self.store(to) } }
    #[inline(always)] unsafe fn fence() {}
    #[inline(always)] unsafe fn prefetch(_at: *const f32) {}
    #[inline(always)] unsafe fn add(self, other: Self) -> Self { self.zip(other, |x, y| x + y) }
    #[inline(always)] unsafe fn sub(self, other: Self) -> Self { self.zip(other, |x, y| x - y) }
    #[inline(always)] unsafe fn mul(self, other: Self) -> Self { self.zip(other, |x, y| x * y) }
    #[inline(always)] unsafe fn max(self, other: Self) -> Self { self.zip(other, |x, y| if x > y { x } else { y }) }
    #[inline(always)] unsafe fn mul_add(self, by: Self, plus: Self) -> Self { self.zip(by, |x, y| x * y).zip(plus, |x, y| x + y) }
    // Adding and taking away 1.5·2²³ rounds to the nearest whole number without a call.
    #[inline(always)] unsafe fn round(self) -> Self { Self(self.0.map(|x| (x + 12_582_912.0) - 12_582_912.0)) }
    #[inline(always)] unsafe fn exp2_whole(self) -> Self { Self(self.0.map(|x| f32::from_bits(((x as i32 + 127) << 23) as u32))) }
    #[inline(always)] unsafe fn sum_lanes(self) -> f32 { (self.0[0] + self.0[2]) + (self.0[1] + self.0[3]) }
    #[inline(always)] unsafe fn max_lanes(self) -> f32 { self.0.into_iter().fold(f32::NEG_INFINITY, f32::max) }
}

impl Plain {
    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| op(self.0[lane], other.0[lane])))
    }
}
