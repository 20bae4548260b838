//! Contractions: panels of rows, each followed by what the kernel does with the sums while they are in cache. Sums do
//! not depend on the number of threads: each is made by one thread, in one order.

mod block_products;
mod byte_products;
mod epilogue;
mod implicit;
mod operands;
mod packable;
mod tasks;
mod windows;

use std::fmt;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use self::byte_products::multiplies_bytes;
use self::epilogue::{Epilogue, EpilogueTiles};
use self::operands::LaneOperand;
use self::packable::PackableOperand;
use self::tasks::ProductTasks;
use self::windows::WindowProduct;
use super::blocks::BlockGemv;
use super::byte_gemm::ByteGemm;
use super::gemm::{Gemm, GemmLists, ImplicitGemm, ListedMatrix, PackBuffers, Winograd};
use super::gemv::{self, Skinny};
use super::program::{Code, CodeInst};
use super::runs::ElementRuns;
use super::schedule::Nest;
use super::threads;
use super::tile::BoundNest;
use crate::blocks::Storage;
use crate::dtype::{DType, Lane};
use crate::kernel::{Args, MatmulArgs, OperandArgs};
use crate::target::CpuTarget;

/// Bytes of sums that are made before they are looked at again. Few would stay nearer, but the right operand is laid out
/// anew for each panel, which costs more.
const PANEL_BYTES: usize = 16 << 20;
/// A product of fewer multiplications than this is not worth a second thread.
const SMALL: usize = 1 << 18;
/// A narrow operand of few elements stays near when it is widened, so that it may be read in any way.
const NEAR: usize = 1 << 16;

/// A launch of a matmul, ready for memory.
pub struct Matmul {
    /// What follows, over `[batch…, m, n]`.
    pub nest: Nest,
    args: MatmulArgs,
    /// The output (by number) whose memory takes the sums, and where it starts: there are no other sums to keep then.
    in_output: Option<(usize, isize)>,
    /// Nothing follows: the sums are the output.
    bare: bool,
    epilogue: EpilogueTiles,
    sums: ProductMethod,
    /// For the left and the right operand: how it is written to scratch memory before the product, if it is.
    lanes: [Option<LaneOperand>; 2],
    /// The nests of the maps that make operands.
    pub made: [Option<Box<Nest>>; 2],
    /// Values that each thread needs room for, to pack operands.
    room: usize,
    /// The operand that is kept packed if it does not change.
    pub packable: Option<Box<PackableOperand>>,
    /// The tasks into which the product is cut; see [`Matmul::share_out`].
    tasks: ProductTasks,
    /// About how long it takes on one thread.
    pub nanos: f64,
}

impl Matmul {
    /// Binds the program of the epilogue, and those of the maps that make operands, to the numbers of a launch.
    pub fn new(
        (code, made): (Arc<Code>, &[Option<Arc<Code>>; 2]),
        args: &Args,
        aliased: &[bool],
        target: &CpuTarget,
    ) -> Matmul {
        let matmul = args.matmul.as_deref().cloned().expect("a matmul's launch has its numbers");
        let made = [0, 1].map(|operand: usize| {
            let (code, args) = made[operand].as_ref().zip(matmul.made[operand].as_ref())?;
            let mut nest = Nest::new(code.clone(), args, &[false], target);
            // No non-temporal stores: the product reads the operand from the caches right afterwards.
            nest.streams.fill(false);
            Some(Box::new(nest))
        });
        let acc = code.insts.iter().position(|i| matches!(i, CodeInst::Acc(_)));
        let lane = acc.map_or(Lane::F32, |i| code.body.insts[i].dtype.lane());
        // Sums go where the result will be, unless what is there is still needed.
        let all: SmallVec<[bool; 8]> = smallvec![true; aliased.len()];
        let nest = Nest::new(code.clone(), args, &all, target);
        let takes_sums = |s: &crate::kernel::Store| match nest.walks[s.access as usize] {
            ElementRuns::Flat(offset)
                if !aliased[s.output as usize] && code.body.outputs[s.output as usize].size() == 4 =>
            {
                Some((s.output as usize, offset))
            }
            _ => None,
        };
        let is_sum =
            |s: &crate::kernel::Store| matches!(code.insts[code.alias[s.value as usize] as usize], CodeInst::Acc(_));
        let alone = code.body.stores.len() == 1;
        // A sum that is stored beside other results must not be overwritten by one of them.
        let in_output = match alone || !code.body.stores.iter().any(is_sum) {
            true => code.body.stores.iter().find_map(takes_sums),
            false => None,
        };
        let bare = in_output.is_some() && alone && is_sum(&code.body.stores[0]);
        let batch: usize = matmul.batch.iter().product();
        let products = batch as f64 * matmul.m as f64 * matmul.k as f64 * matmul.n as f64;
        let nanos = products * 0.03 + nest.nanos + made.iter().flatten().map(|made| made.nanos).sum::<f64>();
        let sums = match lane {
            Lane::F32 => ProductMethod::of_floats(&matmul, code.body.operand_storage(1), target),
            _ if multiplies_bytes(lane, &code.body.inputs) => ProductMethod::Bytes(ByteGemm::new(&matmul, target)),
            _ => ProductMethod::Integers,
        };
        // Blocks of sums that are mapped one by one are handed over apart from the result.
        let (nest, in_output) = match sums {
            ProductMethod::Implicit(_) | ProductMethod::Winograd(_) | ProductMethod::Bytes(_) if !bare => {
                let mut nest = Nest::new(code.clone(), args, aliased, target);
                // A block is written in short rows, which are no whole cache lines.
                nest.streams.fill(false);
                (nest, None)
            }
            _ => (nest, in_output),
        };
        let room = match &sums {
            ProductMethod::Gemm(gemm) => gemm.room(),
            ProductMethod::Implicit(gemm) => gemm.room(),
            ProductMethod::Winograd(gemm) => gemm.room(),
            ProductMethod::Bytes(gemm) => gemm.room(),
            _ => 0,
        };
        let (lanes, epilogue) = ([None; 2], EpilogueTiles::new(&nest, matmul.n, bare));
        let (packable, tasks) = (None, ProductTasks::NONE);
        let mut matmul =
            Matmul { nest, args: matmul, in_output, bare, epilogue, sums, lanes, made, room, packable, tasks, nanos };
        matmul.packable = matmul.packable_operand().map(Box::new);
        matmul.lanes = matmul.lane_operands();
        matmul
    }

    /// Lanes that each thread needs for tiles, of the epilogue or of a map that makes an operand.
    pub fn frame(&self) -> usize {
        let made = self.made.iter().flatten().map(|made| made.scratch.n_lanes()).max();
        self.nest.scratch.n_lanes().max(made.unwrap_or(0))
    }

    /// About how many bytes it occupies, without its program.
    pub fn size_bytes(&self) -> usize {
        let packable =
            self.packable.as_ref().map_or(0, |operand| size_of::<PackableOperand>() + operand.key.size_bytes());
        let made = self.made.iter().flatten().map(|made| size_of::<Nest>() + made.size_bytes()).sum::<usize>();
        size_of::<Matmul>() + self.nest.size_bytes() + self.args.size_bytes() + packable + made
    }

    /// Bytes for sums that have no place in an output.
    pub fn sums_bytes(&self) -> usize {
        let MatmulArgs { m, n, .. } = self.args;
        match self.in_output {
            Some(_) => 0,
            None if self.maps_blocks() => 0,
            None if self.by_batch() || matches!(self.sums, ProductMethod::Windows(_)) => self.n_batch() * m * n * 4,
            None => self.panel_rows().min(m) * n * 4,
        }
    }

    fn n_batch(&self) -> usize {
        self.args.batch.iter().product()
    }

    /// Partial results of each sum: as many as k has parts. Integers are added up at once, which gives the same bits.
    fn n_parts(&self) -> usize {
        if matches!(self.sums, ProductMethod::Integers) { 1 } else { self.args.k_parts.count() }
    }

    /// Multiplications of one matrix.
    fn work(&self) -> usize {
        let MatmulArgs { m, k, n, .. } = self.args;
        m.saturating_mul(n).saturating_mul(k.max(1))
    }

    /// Whether a thread takes whole matrices.
    fn by_batch(&self) -> bool {
        self.n_batch() > 1
            && self.work() < 64 * SMALL
            && !self.maps_blocks()
            && !matches!(self.sums, ProductMethod::Windows(_))
    }

    /// Whether blocks of sums are mapped as they are made, by the thread that makes them.
    fn maps_blocks(&self) -> bool {
        matches!(self.sums, ProductMethod::Implicit(_) | ProductMethod::Winograd(_) | ProductMethod::Bytes(_))
    }

    /// Rows whose sums are made before they are looked at again.
    fn panel_rows(&self) -> usize {
        let MatmulArgs { m, n, .. } = self.args;
        // Few rows would make too little of the other operand.
        let panel = (PANEL_BYTES / 4 / n.max(1)).next_multiple_of(64).clamp(256, m.max(256));
        if self.bare { m } else { panel }
    }

    /// Bytes of the scratch memory that it needs on so many threads, in the order of [`MatmulScratch`]; 0 for what it does
    /// without.
    pub fn scratch_bytes(&self, n_workers: usize) -> [usize; 6] {
        let [a, b] = self.lanes.map(|lanes| lanes.map_or(0, LaneOperand::size_bytes));
        let n_side_by_side = if self.by_batch() { self.n_batch() } else { 1 };
        let parts = n_side_by_side * (self.n_parts() - 1) * self.args.m * self.args.n * 4;
        let packed = match &self.sums {
            ProductMethod::Implicit(gemm) => gemm.packed_len() * 4 + gemm.table_len() * size_of::<isize>(),
            ProductMethod::Windows(product) => product.table_bytes(),
            ProductMethod::Winograd(gemm) => gemm.packed_len() * 4 + gemm.table_len() * size_of::<isize>(),
            ProductMethod::Blocks(gemv) => gemv.digits_bytes(),
            ProductMethod::Bytes(gemm) => gemm.packed_len() * 4,
            ProductMethod::Gemm(gemm) => {
                Gemm { m: self.panel_rows().min(gemm.m), ..*gemm }.split_words(self.args.k_parts) * 4
            }
            _ => 0,
        };
        [a, b, parts, self.sums_bytes(), packed, n_workers * self.room * 4]
    }

    /// Runs it on the threads this is called in. `packed` is the operand that is kept packed, or null.
    ///
    /// # Safety
    /// The memory is as [`BoundNest`] says, for the operands of the product, too, and its uniforms are evaluated. The scratch memory has
    /// what [`scratch_bytes`](Matmul::scratch_bytes) says for as many workers as this is called among, used by nobody else; `packed`
    /// is null or what [`Matmul::pack`] has made of the operand that [`Matmul::packable`] returns.
    /// Made operands are in the scratch memory already: see [`Matmul::make_operand`].
    pub unsafe fn run(&self, bound: &BoundNest, scratch: MatmulScratch, packed: *const f32) {
        let MatmulArgs { m, n, .. } = self.args;
        let n_batch = self.n_batch();
        // SAFETY: as promised by the caller; widened operands hold every element that is read.
        unsafe {
            if self.reads_blocks() {
                return self.run_block(bound, &scratch);
            }
            let sums = self.sums_at(bound, &scratch);
            if let ProductMethod::Bytes(gemm) = &self.sums {
                return self.run_bytes(gemm, bound, SharedPtr(sums), &scratch, packed);
            }
            let a = self.operand(bound, 0, &self.args.a, scratch.a);
            let b = self.operand(bound, 1, &self.args.b, scratch.b);
            let rooms = PackBuffers { first: scratch.rooms.cast(), size: self.room };
            if self.maps_blocks() {
                return self.run_implicit(bound, [a, b], SharedPtr(sums), &scratch, packed);
            }
            let parts = scratch.parts.cast();
            let packed = SharedPtr(packed.cast_mut().cast());
            let epilogue = Epilogue { tiles: self.epilogue, bound, sums: SharedPtr(sums) };
            if let ProductMethod::Windows(product) = self.sums {
                return self.run_windows(product, [a, b], epilogue, &scratch);
            }
            let split = SharedPtr(scratch.packed.cast());
            let product = Product { matmul: self, a, b, packed, split, epilogue, parts: SharedPtr(parts) };
            if let Some(tasks) = self.tasks.matrices {
                threads::for_each_on(tasks.count(), &|worker, task| {
                    for i in tasks.items(task) {
                        product.rows(i, 0, m, rooms.of(worker));
                    }
                });
                return;
            }
            let panel = self.panel_rows();
            for i in 0..n_batch {
                for row in (0..m).step_by(panel.max(1)) {
                    let rows = panel.min(m - row);
                    // Sums with no place of their own start where those of the panel before did.
                    let before = if self.in_output.is_some() { 0 } else { (i * m + row) * n };
                    let epilogue = Epilogue { sums: SharedPtr(sums.wrapping_sub(before)), ..epilogue };
                    Product { epilogue, ..product }.rows(i, row, rows, rooms);
                }
            }
        }
    }

    /// Where the sums begin.
    ///
    /// # Safety
    /// As for [`Matmul::run`].
    unsafe fn sums_at(&self, bound: &BoundNest, scratch: &MatmulScratch) -> *mut u32 {
        match self.in_output {
            // SAFETY: as promised by the caller.
            Some((output, offset)) => unsafe { bound.outputs[output].cast::<u32>().offset(offset) },
            None => scratch.sums.cast(),
        }
    }
}

/// Where the scratch memory of a run is.
#[derive(Clone, Copy)]
pub struct MatmulScratch {
    /// Operands as 32-bit lanes.
    pub a: *mut u8,
    pub b: *mut u8,
    /// Partial results.
    pub parts: *mut u8,
    /// Sums that have no place in an output.
    pub sums: *mut u8,
    /// An operand that is packed as a whole, and a table of where elements of the other are; either may be missing.
    pub packed: *mut u8,
    /// For operands to be packed, a part for each worker.
    pub rooms: *mut u8,
}

impl MatmulScratch {
    /// Which piece sums are.
    pub const SUMS: usize = 3;

    /// In the order of [`Matmul::scratch_bytes`].
    pub fn new([a, b, parts, sums, packed, rooms]: [*mut u8; 6]) -> MatmulScratch {
        MatmulScratch { a, b, parts, sums, packed, rooms }
    }
}

/// How it is shared out, in one line.
impl fmt::Display for Matmul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sums {
            ProductMethod::Integers => write!(f, "integers, row by row")?,
            ProductMethod::Skinny(_) => write!(f, "GEMV")?,
            ProductMethod::Column(_) => write!(f, "GEMV of the transposed product")?,
            ProductMethod::Blocks(gemv) => write!(f, "{gemv}")?,
            ProductMethod::Gemm(gemm) => write!(f, "{gemm}")?,
            ProductMethod::Implicit(gemm) => write!(f, "{gemm}")?,
            ProductMethod::Windows(product) => write!(f, "{product}")?,
            ProductMethod::Winograd(gemm) => write!(f, "{gemm}")?,
            ProductMethod::Bytes(gemm) => write!(f, "{gemm}")?,
        }
        write!(f, "{}", self.tasks)?;
        let [a, b, _, sums, whole, packed] = self.scratch_bytes(1);
        let how = |side: &str, operand: usize| {
            format!("{side} operand {}", if self.made[operand].is_some() { "made" } else { "widened" })
        };
        for (bytes, what) in
            [(a, how("left", 0)), (b, how("right", 1)), (sums, "sums apart".into()), (whole, "packed".into())]
        {
            if bytes > 0 {
                write!(f, ", {what}: {bytes} B")?;
            }
        }
        if packed > 0 {
            write!(f, ", {packed} B packed a thread")?;
        }
        if self.bare { Ok(()) } else { write!(f, "; epilogue {}", self.nest) }
    }
}

/// How sums are made: sizes and steps of a product, still without its memory.
enum ProductMethod {
    Integers,
    Skinny(Skinny),
    /// A matrix times a column is the column, as a row, times the matrix by its columns.
    Column(Skinny),
    /// A few rows with blocks.
    Blocks(BlockGemv),
    Gemm(Gemm),
    Implicit(ImplicitGemm),
    /// A single row with the windows of images.
    Windows(WindowProduct),
    Winograd(Winograd),
    /// Integers whose operands are stored as bytes.
    Bytes(ByteGemm),
}

impl ProductMethod {
    fn of_floats(args: &MatmulArgs, b_storage: Storage, target: &CpuTarget) -> ProductMethod {
        let isa = target.isa;
        let MatmulArgs { m, k, n, ref a, ref b, panels, k_parts, .. } = *args;
        // Most ways share out results: where there are too few of them, the planner has split k.
        let is_whole = k_parts.is_whole();
        let (null, out) = (std::ptr::null(), std::ptr::null_mut());
        let gemm = Gemm {
            isa,
            m,
            k,
            n,
            a: null,
            a_steps: a.steps(),
            b: null.cast(),
            b_storage,
            b_first: 0,
            b_steps: b.steps(),
            panels,
            packed: null,
            // Where threads take whole matrices, scratch memory would have to hold a split left operand for each thread.
            by_amx: panels.is_none() && args.batch.iter().all(|n| *n == 1) && target.amx.takes(m, b_storage),
            split: std::ptr::null_mut(),
            out,
        };
        let (Some(a_steps), Some(b_steps)) = (a.steps(), b.steps()) else {
            if let Some(product) = WindowProduct::of(args, isa).filter(|_| is_whole) {
                return ProductMethod::Windows(product);
            }
            let n_images = args.batch.iter().product();
            let implicit = ImplicitGemm { isa, m, k, n, n_images };
            if is_whole && b.steps().is_none() && a.is_shared(&args.batch) && implicit.fits() {
                let winograd = Winograd::new(implicit, b);
                return winograd.map_or(ProductMethod::Implicit(implicit), ProductMethod::Winograd);
            }
            // Narrow numbers that are read by lists are widened before.
            let b_storage = if b.steps().is_none() { DType::F32.into() } else { b_storage };
            return ProductMethod::Gemm(Gemm { b_storage, ..gemm });
        };
        if let Some(blocks) = b_storage.blocks() {
            let by_rows = b_steps == (1, blocks.row_len as isize) && a_steps.1 == 1;
            let is_one = args.batch.iter().product::<usize>() == 1;
            let gemv = BlockGemv::new(blocks, (m, k, n), b.offset, target).filter(|_| by_rows && is_one && is_whole);
            return gemv.map_or(ProductMethod::Gemm(gemm), ProductMethod::Blocks);
        }
        let by_columns = b_steps.0 == 1 && b_steps.1 != 1;
        let b_pitch = if by_columns { b_steps.1 } else { b_steps.0 };
        let is_near = b_storage == DType::F32.into() || k * n <= NEAR;
        if is_near && (is_whole || !by_columns) && panels.is_none() && gemv::fits(isa, m, a_steps, b_steps) {
            return ProductMethod::Skinny(Skinny {
                m,
                k,
                n,
                a: null,
                a_pitch: a_steps.0,
                b: null,
                b_pitch,
                by_columns,
                out,
            });
        }
        if is_whole && n == 1 && b_steps.0 == 1 && a_steps.1 == 1 && gemv::fits(isa, 1, (k as isize, 1), (1, 0)) {
            let (a_pitch, b_pitch) = (0, a_steps.0);
            return ProductMethod::Column(Skinny {
                m: 1,
                k,
                n: m,
                a: null,
                a_pitch,
                b: null,
                b_pitch,
                by_columns: true,
                out,
            });
        }
        ProductMethod::Gemm(gemm)
    }
}

/// A pointer that tasks share; they write apart.
#[derive(Clone, Copy)]
struct SharedPtr(*mut u32);

// SAFETY: tasks write parts that do not overlap, and no task writes memory that another reads.
unsafe impl Send for SharedPtr {}
// SAFETY: as above.
unsafe impl Sync for SharedPtr {}

impl SharedPtr {
    fn get(self) -> *mut u32 {
        self.0
    }
}

/// An operand's elements and how they lie.
#[derive(Clone, Copy)]
struct StridedOperand<'s> {
    ptr: SharedPtr,
    /// Bytes of an element.
    size: usize,
    lies: &'s OperandArgs,
}

impl StridedOperand<'_> {
    /// The element of the matrix of a batch index that is so far from its first.
    fn matrix(&self, batch: &[usize], idx: usize, from_first: isize) -> *const u8 {
        let at = self.lies.matrix(batch, idx) + from_first;
        self.ptr.get().cast_const().cast::<u8>().wrapping_offset(at * self.size as isize)
    }

    /// Its rows and columns where they are lists of axes, counted from a row on.
    fn listed(&self, first_row: usize) -> Option<ListedMatrix<'_>> {
        let OperandArgs { rows, cols, .. } = self.lies;
        self.lies.steps().is_none().then_some(ListedMatrix { rows, cols, first_row })
    }
}

#[derive(Clone, Copy)]
struct Product<'a> {
    matmul: &'a Matmul,
    a: StridedOperand<'a>,
    b: StridedOperand<'a>,
    /// The right operand packed, or null.
    packed: SharedPtr,
    /// Memory for the left operand as AMX reads it, or null.
    split: SharedPtr,
    epilogue: Epilogue<'a>,
    parts: SharedPtr,
}

impl Product<'_> {
    /// Sums of `rows` rows of a batch's matrix, from `row` on, and what the kernel does with them.
    ///
    /// # Safety
    /// As for [`Matmul::run`]; these rows are within the matrix, the rooms are those of the workers that take part, and
    /// nobody else computes these rows.
    unsafe fn rows(&self, batch_idx: usize, row: usize, rows: usize, rooms: PackBuffers) {
        let MatmulArgs { m, k, n, ref batch, .. } = self.matmul.args;
        if rows == 0 || n == 0 {
            return;
        }
        let row_step = self.a.lies.steps().map_or(0, |steps| row as isize * steps.0);
        let a: *const f32 = self.a.matrix(batch, batch_idx, row_step).cast();
        let b = self.b.matrix(batch, batch_idx, 0);
        // Of blocks, elements have no address: they are counted from the first.
        let storage = self.matmul.nest.code.body.operand_storage(1);
        let blocks = storage.blocks().filter(|_| self.matmul.lanes[1].is_none());
        let b_first = blocks.map_or(0, |_| self.b.lies.matrix(batch, batch_idx));
        let b = if blocks.is_some() { self.b.ptr.get().cast_const().cast() } else { b };
        let start = (batch_idx * m + row) * n;
        let out = self.epilogue.sums.get().wrapping_add(start);
        let (k_parts, n_parts) = (self.matmul.args.k_parts, self.matmul.n_parts());
        let parts_before = if self.matmul.by_batch() { batch_idx * (n_parts - 1) * m * n } else { 0 };
        let parts = self.parts.get().wrapping_add(parts_before).cast();
        // SAFETY: the matrices are within their memory, and nobody else writes these rows.
        unsafe {
            match self.matmul.sums {
                ProductMethod::Integers => {
                    let a: *const u32 = self.a.matrix(batch, batch_idx, 0).cast();
                    integers(a, (self.a.lies, row), b.cast(), self.b.lies, out, (rows, k, n))
                }
                ProductMethod::Skinny(skinny) => {
                    Skinny { m: rows, a, b: b.cast(), out: out.cast(), ..skinny }.run(k_parts, parts)
                }
                ProductMethod::Column(skinny) => {
                    Skinny { n: rows, a: b.cast(), b: a, out: out.cast(), ..skinny }.run(k_parts, parts)
                }
                ProductMethod::Gemm(gemm) => {
                    let lists = GemmLists { a: self.a.listed(row), b: self.b.listed(0) };
                    let tasks = self.matmul.tasks.grid(rows, !self.packed.get().is_null());
                    let (packed, split) = (self.packed.get().cast(), self.split.get());
                    Gemm { m: rows, a, b, b_first, packed, split, out: out.cast(), ..gemm }.run(
                        lists,
                        rooms,
                        (k_parts, tasks),
                        parts,
                    )
                }
                ProductMethod::Blocks(_)
                | ProductMethod::Implicit(_)
                | ProductMethod::Winograd(_)
                | ProductMethod::Bytes(_)
                | ProductMethod::Windows(_) => {
                    unreachable!("not computed row by row")
                }
            }
            self.epilogue.rows(start, rows);
        }
    }
}

/// Exact wrapping products of integers: rows of `b` scaled and added, so that lanes of a row go together.
///
/// # Safety
/// All elements that the lists reach are within `a` and `b`, which nobody writes meanwhile; `out` has room for `m` rows
/// of `n`, disjoint from both and used by nobody else.
unsafe fn integers(
    a: *const u32,
    (a_lies, first_row): (&OperandArgs, usize),
    b: *const u32,
    b_lies: &OperandArgs,
    out: *mut u32,
    (m, k, n): (usize, usize, usize),
) {
    let (a, b, out) = (SharedPtr(a.cast_mut()), SharedPtr(b.cast_mut()), SharedPtr(out));
    let row = |i: usize| {
        // SAFETY: as promised by the caller.
        unsafe {
            let out = std::slice::from_raw_parts_mut(out.get().add(i * n), n);
            out.fill(0);
            let a = a.get().offset(a_lies.rows.at(first_row + i));
            for (x, l) in a_lies.cols.offsets(0).zip(b_lies.rows.offsets(0)).take(k) {
                let (x, b) = (*a.offset(x), b.get().offset(l));
                if b_lies.cols.stride() == Some(1) {
                    let b = std::slice::from_raw_parts(b, n);
                    out.iter_mut().zip(b).for_each(|(o, y)| *o = o.wrapping_add(x.wrapping_mul(*y)));
                } else {
                    for (o, column) in out.iter_mut().zip(b_lies.cols.offsets(0)) {
                        *o = o.wrapping_add(x.wrapping_mul(*b.offset(column)));
                    }
                }
            }
        }
    };
    match m.saturating_mul(k).saturating_mul(n) > SMALL {
        true => threads::for_each(m, &row),
        false => (0..m).for_each(row),
    }
}
