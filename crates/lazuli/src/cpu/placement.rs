//! Wake-up placement of pool threads. The scheduler may wake a thread on the processor of the thread that wakes it and leave both
//! there for milliseconds although others are idle, above all in virtual machines, which often hide the cache topology. On such a
//! machine with two processors an evaluation of 10 ms that followed a pause of 30 ms took 17 ms. A pool thread therefore moves itself
//! to another processor when it is woken. Threads of the user's program are never moved.

/// The number of the processor that this thread runs on; None if `sched_getcpu` fails.
#[cfg(target_os = "linux")]
pub fn here() -> Option<usize> {
    // SAFETY: the call takes no arguments and reads no memory of ours.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Moves this thread to another processor if it runs on `processor` and is allowed on at least `n_threads` processors. Its affinity is
/// set to all of them but one, which moves it, and then back to what it was. Linux 6.2 and later then treat it as asked for by the
/// program: processors that are added to a container's cpuset afterwards are not used by this thread.
#[cfg(target_os = "linux")]
pub fn leave(processor: usize, n_threads: usize) {
    if here() != Some(processor) || processor >= libc::CPU_SETSIZE as usize {
        return;
    }
    // SAFETY: a set of bits may be all zeros; the size handed over is that of the set, and `processor` is less than its number of bits.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size, &mut allowed) != 0 || (libc::CPU_COUNT(&allowed) as usize) < n_threads {
            return;
        }
        let mut others = allowed;
        libc::CPU_CLR(processor, &mut others);
        // If the system refuses, the thread stays where it is.
        if libc::CPU_COUNT(&others) > 0 && libc::sched_setaffinity(0, size, &others) == 0 {
            libc::sched_setaffinity(0, size, &allowed);
        }
    }
}

/// None: threads are placed on Linux alone.
#[cfg(not(target_os = "linux"))]
pub fn here() -> Option<usize> {
    None
}

/// Other systems place threads by themselves.
#[cfg(not(target_os = "linux"))]
pub fn leave(_processor: usize, _n_threads: usize) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// The processors that this thread may run on.
    fn allowed() -> Vec<usize> {
        // SAFETY: as above.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set), 0);
            (0..libc::CPU_SETSIZE as usize).filter(|processor| libc::CPU_ISSET(*processor, &set)).collect()
        }
    }

    fn run_on(processors: &[usize]) {
        // SAFETY: as above.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            processors.iter().for_each(|processor| libc::CPU_SET(*processor, &mut set));
            assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set), 0);
        }
    }

    #[test]
    fn a_thread_leaves_a_processor_and_may_come_back() {
        let before = allowed();
        let first = before[0];
        for _ in 0..20 {
            run_on(&[first]);
            assert_eq!(here(), Some(first));
            // It may run nowhere else.
            leave(first, 1);
            assert_eq!((here(), allowed()), (Some(first), vec![first]));
            run_on(&before);
            leave(first, before.len() + 1);
            assert_eq!(allowed(), before);
            leave(first, before.len());
            assert_eq!(allowed(), before);
        }
        if before.len() > 1 {
            // On a loaded machine the system may have brought it back by now, but not every time.
            let left = (0..50).filter(|_| {
                run_on(&[first]);
                run_on(&before);
                leave(first, before.len());
                here() != Some(first)
            });
            assert!(left.count() > 0);
        }
    }
}
