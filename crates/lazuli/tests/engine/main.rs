//! The engine's promises, each as a test named after it, through the public API on the device under test.

mod accuracy;
mod blocks;
mod composed;
mod convolution;
mod attention;
mod creation;
mod custom;
mod device;
mod donation;
mod errors;
mod extremes;
mod fusion;
mod futures;
mod kept;
mod lengths;
mod gradients;
mod grouped;
mod halves;
mod lines;
mod made;
mod packed;
mod recordings;
mod regressions;
mod rows;
mod shapes;
mod sizes;
mod softmax;
mod special;
mod stages;
mod steady;
mod temporaries;
mod weights;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// There is one device with one set of counters: tests that read them have it to themselves.
static DEVICE: RwLock<()> = RwLock::new(());

/// The device, beside other tests.
fn shared() -> RwLockReadGuard<'static, ()> {
    DEVICE.read().unwrap_or_else(PoisonError::into_inner)
}

/// The device, without other tests.
fn alone() -> RwLockWriteGuard<'static, ()> {
    DEVICE.write().unwrap_or_else(PoisonError::into_inner)
}
