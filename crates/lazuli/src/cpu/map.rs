//! Maps: tile after tile over the outer axes. Tiles depend on nothing but themselves.

use super::schedule::Traversal;
use super::threads;
use super::tile::{BoundNest, Frame, Tile};

/// Runs a map on the threads this is called in.
///
/// # Safety
/// The memory is as [`BoundNest`] says, and its uniforms are evaluated.
pub unsafe fn run(bound: &BoundNest) {
    let Traversal::Map(grid) = bound.nest.form else { unreachable!("called for maps") };
    let tasks = bound.nest.tasks;
    threads::for_each(tasks.count(), &|task| {
        bound.with_frame(|frame| {
            for idx in tasks.items(task) {
                let (start, rows, len) = grid.at(idx);
                let tile = Tile { start, rows, len, pitch: grid.width, ..Tile::default() };
                // SAFETY: as promised by the caller.
                unsafe { run_tile(frame, &tile) };
            }
        });
    });
}

/// Runs one tile.
///
/// # Safety
/// As for [`Frame::run`]: the tile is within the index space, and no other thread runs it. A body that follows a product finds its sums in
/// `frame.accs`.
pub unsafe fn run_tile(frame: &mut Frame, tile: &Tile) {
    for pass in &frame.bound.nest.passes.inner {
        // SAFETY: as promised by the caller.
        unsafe { frame.run(pass, tile) };
    }
}
