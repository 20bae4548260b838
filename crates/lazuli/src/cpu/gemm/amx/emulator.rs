//! Emulates the instructions of AMX on processors that lack them, for tests. A handler of SIGILL decodes the instruction that the
//! processor refused, does what Intel's manual says of that instruction, and continues after it. The emulator decodes, from their bytes,
//! only the instructions that the micro-kernel uses, so the tests also check how the assembler encodes them. Any other illegal instruction
//! ends the program as it would without the handler.

use std::cell::UnsafeCell;
use std::sync::OnceLock;

/// The number of tile registers in palette 1, the most rows of one, and the most bytes of a row.
const N_REGISTERS: usize = 8;
const MAX_ROWS: usize = 16;
const ROW_BYTES: usize = 64;

/// An address: base + index · 2^scale + displacement. Loads and stores of tiles use index · 2^scale as the pitch of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Address {
    pub base: usize,
    pub index: Option<usize>,
    pub scale: u32,
    pub displacement: i32,
}

/// An instruction. Tile registers are given by number, general registers by the number that encodes them: RAX is 0, RCX 1, R15 15.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Instruction {
    LoadConfig(Address),
    Release,
    Zero(usize),
    Load(usize, Address),
    Store(Address, usize),
    /// Adds the products of pairs of the second tile register and of the third to the sums in the first.
    DotBf16(usize, usize, usize),
}

/// Reads the bytes of code one after another.
struct CodeReader {
    at: *const u8,
    len: usize,
}

impl CodeReader {
    /// # Safety
    /// Another byte can be read.
    unsafe fn next(&mut self) -> u8 {
        // SAFETY: as promised by the caller.
        let byte = unsafe { *self.at.add(self.len) };
        self.len += 1;
        byte
    }
}

/// The instruction at an address, and how many bytes it has; None if it is none that the emulator knows.
///
/// # Safety
/// A whole instruction can be read at the address.
pub unsafe fn decode(at: *const u8) -> Option<(Instruction, usize)> {
    let mut code = CodeReader { at, len: 0 };
    // SAFETY: as promised by the caller; nothing is read beyond what belongs to the instruction.
    unsafe {
        // A VEX prefix of three bytes; R, X, B and vvvv are stored inverted.
        if code.next() != 0xc4 {
            return None;
        }
        let (first, second) = (code.next(), code.next());
        let [r, x, b] = [7, 6, 5].map(|bit| usize::from(!first >> bit & 1) << 3);
        let third_register = usize::from(!second >> 3 & 15);
        // The map of opcodes 0F 38, W = 0, L = 0.
        if first & 31 != 2 || second & 0x84 != 0 {
            return None;
        }
        let (prefix, opcode, modrm) = (second & 3, code.next(), code.next());
        let (mode, reg, rm) = (modrm >> 6, r + usize::from(modrm >> 3 & 7), usize::from(modrm & 7));
        let is_plain = third_register == 0;
        let tile = (reg < N_REGISTERS).then_some(reg);
        let instruction = match (opcode, prefix, mode) {
            (0x49, 0, 3) if is_plain && modrm == 0xc0 => Instruction::Release,
            (0x49, 3, 3) if is_plain && rm == 0 => Instruction::Zero(tile?),
            (0x49, 0, _) if is_plain && reg == 0 => Instruction::LoadConfig(address(&mut code, mode, rm, x, b)?),
            // Tiles are loaded and stored by base and index alone.
            (0x4b, 3, 0..=2) if is_plain && rm == 4 => Instruction::Load(tile?, address(&mut code, mode, rm, x, b)?),
            (0x4b, 2, 0..=2) if is_plain && rm == 4 => Instruction::Store(address(&mut code, mode, rm, x, b)?, tile?),
            (0x5c, 2, 3) if third_register < N_REGISTERS && b == 0 => Instruction::DotBf16(tile?, rm, third_register),
            _ => return None,
        };
        Some((instruction, code.len))
    }
}

/// The address that ModRM, SIB and displacement encode; None if it has no base register.
///
/// # Safety
/// The whole instruction can be read.
unsafe fn address(code: &mut CodeReader, mode: u8, rm: usize, x: usize, b: usize) -> Option<Address> {
    // SAFETY: as promised by the caller.
    unsafe {
        let (mut base, mut index, mut scale) = (rm + b, None, 0);
        if rm == 4 {
            let sib = code.next();
            (base, scale) = (usize::from(sib & 7) + b, u32::from(sib >> 6));
            // RSP as an index means none.
            index = Some(usize::from(sib >> 3 & 7) + x).filter(|index| *index != 4);
        }
        let displacement = match mode {
            // Without a displacement, RBP and R13 stand for other addresses.
            0 if base & 7 != 5 => 0,
            1 => i32::from(code.next() as i8),
            2 => i32::from_le_bytes([code.next(), code.next(), code.next(), code.next()]),
            _ => return None,
        };
        Some(Address { base, index, scale, displacement })
    }
}

/// The bytes of a tile register.
pub type Tile = [[u8; ROW_BYTES]; MAX_ROWS];

/// What a thread's tile registers hold.
pub struct TileState {
    /// Rows and bytes of a row of each register; zeros while there is no configuration.
    shapes: [(usize, usize); N_REGISTERS],
    tiles: [Tile; N_REGISTERS],
}

impl TileState {
    pub const fn new() -> TileState {
        TileState { shapes: [(0, 0); N_REGISTERS], tiles: [[[0; ROW_BYTES]; MAX_ROWS]; N_REGISTERS] }
    }

    pub fn tile(&self, register: usize) -> &Tile {
        &self.tiles[register]
    }

    /// Executes an instruction, given the general registers; None where the processor would raise a fault.
    ///
    /// # Safety
    /// The memory that the instruction addresses can be read, and written if the instruction stores.
    pub unsafe fn execute(&mut self, instruction: Instruction, registers: &dyn Fn(usize) -> usize) -> Option<()> {
        let start = |address: Address| registers(address.base).wrapping_add_signed(address.displacement as isize);
        let step = |address: Address| address.index.map_or(0, |index| registers(index) << address.scale);
        let shape = |shapes: &[(usize, usize)], register: usize| Some(shapes[register]).filter(|shape| shape.0 > 0);
        // SAFETY: as promised by the caller.
        unsafe {
            match instruction {
                Instruction::LoadConfig(address) => {
                    let from = start(address).wrapping_add(step(address)) as *const [u8; ROW_BYTES];
                    *self = TileState { shapes: configured(&from.read())?, ..TileState::new() };
                }
                Instruction::Release => *self = TileState::new(),
                Instruction::Zero(tile) => {
                    shape(&self.shapes, tile)?;
                    self.tiles[tile] = [[0; ROW_BYTES]; MAX_ROWS];
                }
                Instruction::Load(tile, address) => {
                    let (n_rows, n_bytes) = shape(&self.shapes, tile)?;
                    self.tiles[tile] = [[0; ROW_BYTES]; MAX_ROWS];
                    for (row, to) in self.tiles[tile].iter_mut().enumerate().take(n_rows) {
                        let from = start(address).wrapping_add(row * step(address)) as *const u8;
                        from.copy_to_nonoverlapping(to.as_mut_ptr(), n_bytes);
                    }
                }
                Instruction::Store(address, tile) => {
                    let (n_rows, n_bytes) = shape(&self.shapes, tile)?;
                    for (row, from) in self.tiles[tile].iter().enumerate().take(n_rows) {
                        let to = start(address).wrapping_add(row * step(address)) as *mut u8;
                        to.copy_from_nonoverlapping(from.as_ptr(), n_bytes);
                    }
                }
                Instruction::DotBf16(sums, left, right) => {
                    let [to, a, b] = [sums, left, right].map(|tile| self.shapes[tile]);
                    let fits = to.0 > 0 && a.0 == to.0 && b.1 == to.1 && a.1 == 4 * b.0;
                    fits.then_some(())?;
                    // Three different ones.
                    let [sums, left, right] = self.tiles.get_disjoint_mut([sums, left, right]).ok()?;
                    dot_bf16(sums, (left, right), [to.0, to.1 / 4, b.0]);
                }
            }
        }
        Some(())
    }
}

/// The rows and the bytes of a row of each register, from the memory that LDTILECFG reads; None where the processor would raise a fault.
fn configured(bytes: &[u8; ROW_BYTES]) -> Option<[(usize, usize); N_REGISTERS]> {
    let word = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let shapes = std::array::from_fn(|tile| (usize::from(bytes[48 + tile]), word(16 + 2 * tile)));
    let is_right = |(n_rows, n_bytes): &(usize, usize)| {
        *n_rows <= MAX_ROWS && *n_bytes <= ROW_BYTES && n_bytes % 4 == 0 && (*n_rows == 0) == (*n_bytes == 0)
    };
    let are_zero = bytes[2..16].iter().chain(&bytes[32..48]).chain(&bytes[56..]).all(|byte| *byte == 0);
    (bytes[0] == 1 && bytes[1] == 0 && are_zero && shapes.iter().all(is_right)).then_some(shapes)
}

/// A number as AMX reads and writes it: a subnormal number becomes a zero of its sign.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// TDPBF16PS: for each result, products of the first halves of pairs and products of the second halves are summed up apart, every
/// addition rounded to nearest; then both sums are added, and their total is added to the result.
fn dot_bf16(sums: &mut Tile, (a, b): (&Tile, &Tile), [n_rows, n_columns, n_pairs]: [usize; 3]) {
    let half = |row: &[u8; ROW_BYTES], pair: usize, half: usize| {
        let at = 4 * pair + 2 * half;
        flushed(f32::from_bits(u32::from(u16::from_le_bytes([row[at], row[at + 1]])) << 16))
    };
    for row in 0..n_rows {
        for column in 0..n_columns {
            let mut of_halves = [0.0f32; 2];
            for pair in 0..n_pairs {
                for (i, sum) in of_halves.iter_mut().enumerate() {
                    *sum = flushed(half(&a[row], pair, i).mul_add(half(&b[pair], column, i), *sum));
                }
            }
            let to: &mut [u8] = &mut sums[row][4 * column..][..4];
            let before = flushed(f32::from_le_bytes([to[0], to[1], to[2], to[3]]));
            let sum = flushed(before + flushed(of_halves[0] + of_halves[1]));
            to.copy_from_slice(&sum.to_le_bytes());
        }
    }
}

thread_local! {
    static STATE: UnsafeCell<TileState> = const { UnsafeCell::new(TileState::new()) };
}

/// Places of the general registers in the context of a signal, in the order of their numbers.
const PLACES: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Emulates the instruction that raised SIGILL. If the emulator does not know it, the handler is removed and the instruction raises
/// SIGILL again.
extern "C" fn on_sigill(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system hands over the context of this thread, which stood before an instruction; the state is this thread's, and
    // nobody else holds it while a handler runs.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let value = |place: i32| registers[place as usize] as usize;
        let done = decode(value(libc::REG_RIP) as *const u8).and_then(|(instruction, len)| {
            let general = |number: usize| value(PLACES[number]);
            STATE.with(|state| (*state.get()).execute(instruction, &general)).map(|()| len)
        });
        match done {
            Some(len) => registers[libc::REG_RIP as usize] += len as i64,
            None => {
                libc::signal(libc::SIGILL, libc::SIG_DFL);
            }
        }
    }
}

/// Makes sure that this process can run the micro-kernel of AMX: on the processor, or emulated.
pub fn install() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        if crate::target::amx_is_permitted() {
            return;
        }
        // SAFETY: a `sigaction` may be all zeros but for its handler, which takes the arguments that SA_SIGINFO passes.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigill as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0);
        }
    });
}
