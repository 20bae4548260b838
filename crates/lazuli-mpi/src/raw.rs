//! The few calls of MPI that this crate makes, and the only unsafe code in it. All are immediate: they start something that
//! `Pending::test` finishes. Everything here is called by one thread, the one that initialised MPI; nothing here knows
//! tensors, deadlines or what a message means.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;

use mpi::ffi;
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::AsRaw;

/// What MPI said instead of doing as asked.
pub type RawResult<T> = Result<T, String>;

/// Something under way, with the memory that MPI reads and writes meanwhile. It cannot be cancelled: if it is dropped before it
/// has ended, its memory is kept for as long as the process lives.
pub struct Pending {
    request: ffi::MPI_Request,
    memory: ManuallyDrop<Memory>,
    is_done: bool,
}

/// Buffers whose addresses stay as they are while MPI has them.
#[derive(Default)]
struct Memory {
    send: Vec<u8>,
    receive: Vec<u8>,
    counts: [Vec<c_int>; 4],
}

impl Pending {
    fn start(memory: Memory, call: impl FnOnce(&mut Memory, *mut ffi::MPI_Request) -> c_int) -> RawResult<Pending> {
        // SAFETY: reading a constant of the MPI library.
        let request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let mut pending = Pending { request, memory: ManuallyDrop::new(memory), is_done: false };
        let code = call(&mut pending.memory, &raw mut pending.request);
        checked(code).map(|()| pending)
    }

    /// Whether it has ended. Drives whatever else MPI has under way.
    pub fn test(&mut self) -> RawResult<bool> {
        if !self.is_done {
            let mut flag = 0;
            // SAFETY: the request is the one that was started, and its memory is kept in `self`.
            let code = unsafe { ffi::MPI_Test(&raw mut self.request, &raw mut flag, ffi::RSMPI_STATUS_IGNORE) };
            checked(code)?;
            self.is_done = flag != 0;
        }
        Ok(self.is_done)
    }

    /// What has arrived, once it has ended.
    pub fn received(&mut self) -> Vec<u8> {
        assert!(self.is_done, "memory that MPI still writes is not read");
        std::mem::take(&mut self.memory.receive)
    }

    /// Gives up a receive that nothing will come for any more.
    pub fn cancel(mut self) {
        if self.is_done {
            return;
        }
        // SAFETY: the request is a receive that was started and has not ended; a cancelled one ends at once.
        unsafe {
            ffi::MPI_Cancel(&raw mut self.request);
            ffi::MPI_Wait(&raw mut self.request, ffi::RSMPI_STATUS_IGNORE);
        }
        self.is_done = true;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_done {
            // SAFETY: MPI has let go of the memory, and nobody uses it after this.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// A group of ranks whose messages do not meet those of another.
pub struct Comm(SimpleCommunicator);

impl Comm {
    /// Another one of the same ranks. Faults on it are returned, not fatal.
    pub fn duplicate(of: &SimpleCommunicator) -> RawResult<Comm> {
        let comm = of.duplicate();
        // SAFETY: the communicator was just made; the handler is a constant of the library.
        checked(unsafe { ffi::MPI_Comm_set_errhandler(comm.as_raw(), ffi::RSMPI_ERRORS_RETURN) })?;
        Ok(Comm(comm))
    }

    /// Sends `send`, cut as `send_counts` say, a part to each rank; receives so many bytes from each.
    pub fn all_to_all(&self, send: Vec<u8>, send_counts: &[usize], receive_counts: &[usize]) -> RawResult<Pending> {
        let (sent, starts) = placed(send_counts)?;
        let (received, places) = placed(receive_counts)?;
        let receive = vec![0; receive_counts.iter().sum()];
        let memory = Memory { send, receive, counts: [sent, starts, received, places] };
        Pending::start(memory, |m, request| {
            // SAFETY: counts and places lie within the buffers, which `Pending` keeps until the request has ended.
            unsafe {
                ffi::MPI_Ialltoallv(
                    start_of(&m.send),
                    m.counts[0].as_ptr(),
                    m.counts[1].as_ptr(),
                    ffi::RSMPI_UINT8_T,
                    start_of_mut(&mut m.receive),
                    m.counts[2].as_ptr(),
                    m.counts[3].as_ptr(),
                    ffi::RSMPI_UINT8_T,
                    self.0.as_raw(),
                    request,
                )
            }
        })
    }

    /// What each rank sends, one after another, on all of them.
    pub fn all_gather(&self, send: Vec<u8>, receive_counts: &[usize]) -> RawResult<Pending> {
        let n_sent = c_int::try_from(send.len()).map_err(|_| too_large(send.len()))?;
        let (received, places) = placed(receive_counts)?;
        let receive = vec![0; receive_counts.iter().sum()];
        let memory = Memory { send, receive, counts: [Vec::new(), Vec::new(), received, places] };
        Pending::start(memory, |m, request| {
            // SAFETY: counts and places lie within the buffers, which `Pending` keeps until the request has ended.
            unsafe {
                ffi::MPI_Iallgatherv(
                    start_of(&m.send),
                    n_sent,
                    ffi::RSMPI_UINT8_T,
                    start_of_mut(&mut m.receive),
                    m.counts[2].as_ptr(),
                    m.counts[3].as_ptr(),
                    ffi::RSMPI_UINT8_T,
                    self.0.as_raw(),
                    request,
                )
            }
        })
    }

    /// The bytes of rank `root` on all ranks; the others hand in as many of their own.
    pub fn broadcast(&self, bytes: Vec<u8>, root: usize) -> RawResult<Pending> {
        let n = c_int::try_from(bytes.len()).map_err(|_| too_large(bytes.len()))?;
        Pending::start(Memory { receive: bytes, ..Memory::default() }, |m, request| {
            // SAFETY: the buffer has `n` bytes and is kept until the request has ended.
            unsafe {
                let buffer = start_of_mut(&mut m.receive);
                ffi::MPI_Ibcast(buffer, n, ffi::RSMPI_UINT8_T, root as c_int, self.0.as_raw(), request)
            }
        })
    }

    /// Ends when all ranks have called it.
    pub fn barrier(&self) -> RawResult<Pending> {
        // SAFETY: no memory is involved but the request.
        Pending::start(Memory::default(), |_, request| unsafe { ffi::MPI_Ibarrier(self.0.as_raw(), request) })
    }

    /// A message to one rank.
    pub fn send(&self, bytes: Vec<u8>, to: usize) -> RawResult<Pending> {
        let n = c_int::try_from(bytes.len()).map_err(|_| too_large(bytes.len()))?;
        Pending::start(Memory { send: bytes, ..Memory::default() }, |m, request| {
            // SAFETY: the buffer has `n` bytes and is kept until the request has ended.
            unsafe {
                let buffer = start_of(&m.send);
                ffi::MPI_Isend(buffer, n, ffi::RSMPI_UINT8_T, to as c_int, 0, self.0.as_raw(), request)
            }
        })
    }

    /// A message of at most this many bytes from any rank; those that it does not fill are 0.
    pub fn receive(&self, most_bytes: usize) -> RawResult<Pending> {
        let n = c_int::try_from(most_bytes).map_err(|_| too_large(most_bytes))?;
        Pending::start(Memory { receive: vec![0; most_bytes], ..Memory::default() }, |m, request| {
            // SAFETY: the buffer has `n` bytes and is kept until the request has ended.
            unsafe {
                let (buffer, any) = (start_of_mut(&mut m.receive), ffi::RSMPI_ANY_SOURCE);
                ffi::MPI_Irecv(buffer, n, ffi::RSMPI_UINT8_T, any, 0, self.0.as_raw(), request)
            }
        })
    }

    /// Ends all processes of the job, this one included.
    pub fn abort(&self, code: i32) {
        // SAFETY: a call without memory. Where it returns, the caller ends the process.
        unsafe { ffi::MPI_Abort(self.0.as_raw(), code) };
    }
}

/// Ends this process at once: nothing is flushed, no destructor runs, nothing can hang.
pub fn exit_now(code: i32) -> ! {
    unsafe extern "C" {
        safe fn _exit(code: c_int) -> !;
    }
    _exit(code)
}

/// What the MPI library calls itself, its first line.
pub fn library() -> String {
    let text = mpi::environment::library_version().unwrap_or_default();
    text.trim_end_matches('\0').lines().next().unwrap_or("an unknown MPI").trim().to_string()
}

/// Where a buffer begins, as MPI takes it. The address of an empty vector is no memory, and may be the number 1, which
/// is Open MPI's `MPI_IN_PLACE`.
fn start_of(buffer: &[u8]) -> *const c_void {
    if buffer.is_empty() { std::ptr::null() } else { buffer.as_ptr().cast() }
}

fn start_of_mut(buffer: &mut [u8]) -> *mut c_void {
    if buffer.is_empty() { std::ptr::null_mut() } else { buffer.as_mut_ptr().cast() }
}

/// Counts and where each part begins, as MPI takes them.
fn placed(counts: &[usize]) -> RawResult<(Vec<c_int>, Vec<c_int>)> {
    let total: usize = counts.iter().sum();
    if c_int::try_from(total).is_err() {
        return Err(too_large(total));
    }
    let mut at = 0;
    let place = |n: &usize| {
        at += n;
        (at - n) as c_int
    };
    let places = counts.iter().map(place).collect();
    Ok((counts.iter().map(|n| *n as c_int).collect(), places))
}

fn too_large(n_bytes: usize) -> String {
    format!("{n_bytes} bytes are more than MPI moves at once ({}); cut the tensor", c_int::MAX)
}

fn checked(code: c_int) -> RawResult<()> {
    // MPI_SUCCESS is 0 in every MPI.
    if code == 0 {
        return Ok(());
    }
    // Longer than MPI_MAX_ERROR_STRING of Open MPI (256) and MPICH (512).
    let (mut text, mut len): ([c_char; 2048], c_int) = ([0; 2048], 0);
    // SAFETY: the buffer is longer than any text, and zeroed.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr(), &raw mut len) };
    let bytes: Vec<u8> = text.iter().take(len.max(0) as usize).map(|c| *c as u8).collect();
    Err(String::from_utf8_lossy(&bytes).into_owned())
}
