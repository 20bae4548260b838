//! Natively nobody is called back unless somebody polls the device. Futures leave that to a thread of its own, which
//! sleeps while there are none. In a browser the event loop does it, and no thread may wait: all that differs there is
//! here.

use std::sync::Arc;
#[cfg(not(target_arch = "wasm32"))]
use std::sync::{
    Mutex, PoisonError,
    mpsc::{Sender, channel},
};

#[cfg(not(target_arch = "wasm32"))]
use super::open_device::is_gone;
use super::signal::Signal;
use crate::error::{Error, Result};

/// An error where a thread must not wait for a device, because the device would then never answer.
pub fn may_wait() -> Result<()> {
    match cfg!(target_arch = "wasm32") {
        true => Err(Error::unsupported("wait", "a browser cannot wait for a device: use the calls that end in _async")),
        false => Ok(()),
    }
}

/// Polls a device for as long as a future waits for it.
pub struct Waiter {
    #[cfg_attr(target_arch = "wasm32", allow(dead_code))]
    device: wgpu::Device,
    #[cfg(not(target_arch = "wasm32"))]
    thread: Mutex<Option<Sender<Arc<Signal<bool>>>>>,
}

impl Waiter {
    /// No thread is started before one is needed.
    pub fn new(device: wgpu::Device) -> Waiter {
        Waiter {
            device,
            #[cfg(not(target_arch = "wasm32"))]
            thread: Mutex::default(),
        }
    }

    /// Sees to it that callbacks for all that was submitted so far are called, this one's among them.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn watch(&self, asked: &Arc<Signal<bool>>) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_some_and(|wake| wake.send(asked.clone()).is_ok()) {
            return;
        }
        let (wake, woken) = channel::<Arc<Signal<bool>>>();
        let device = self.device.clone();
        let poll = move || {
            // Ends when the device is let go.
            while let Ok(first) = woken.recv() {
                // Whoever has asked by now is served by the same wait.
                let asked: Vec<_> = std::iter::once(first).chain(woken.try_iter()).collect();
                serve(&device, &asked);
            }
        };
        match std::thread::Builder::new().name("lazuli gpu".into()).spawn(poll) {
            Ok(_) => {
                let _ = wake.send(asked.clone());
                *thread = Some(wake);
            }
            // No thread to be had: wait here rather than never.
            Err(_) => serve(&self.device, std::slice::from_ref(asked)),
        }
    }

    /// The event loop calls back.
    #[cfg(target_arch = "wasm32")]
    pub fn watch(&self, _: &Arc<Signal<bool>>) {}
}

/// Waits until all that was submitted is done, and so everybody called back who has asked before.
#[cfg(not(target_arch = "wasm32"))]
fn serve(device: &wgpu::Device, asked: &[Arc<Signal<bool>>]) {
    let wait = || {
        // OpenGL waits for two seconds at most, however long it is told to.
        while let Err(wgpu::PollError::Timeout) = device.poll(wgpu::PollType::wait_indefinitely()) {}
    };
    // wgpu panics when the driver reports a loss while it waits, every time it is asked, and then calls nobody back.
    if is_gone(device) || std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)).is_err() {
        asked.iter().for_each(|signal| signal.set(false));
    }
}
