//! Elements of blocks, widened as they are read: the WGSL of what `blocks/resident.rs` does. Anything may read elements one by
//! one, or four neighbours of a row: a word of codes, masked. Products of stored weights read four rows at once
//! ([`BlockSteps`]): a vector of 16 bytes, since rows of a tile are interleaved. Knows the sections of a tile; nothing of index
//! maps or instructions.

use super::convert;
use super::launch_memory::{LaunchMemory, SlotMemory};
use super::memory::{VecAccess, accessor};
use super::shader::Shader;
use super::tree::{ShaderExpr, ShaderType, Statement, Statements, call, literal, named, select, word};
use crate::blocks::{BlockStorage, ROWS, SubOffsets, TileLayout};
use crate::dtype::Lane;

const FOUR: ShaderType = ShaderType::Vec(4, Lane::F32);
const WORDS: ShaderType = ShaderType::Vec(4, Lane::U32);

impl SlotMemory {
    /// The element at an index, counted row by row.
    pub fn widened(&self, shader: &mut Shader, blocks: BlockStorage, at: ShaderExpr) -> ShaderExpr {
        let name = format!("load_{}_{}", self.name, blocks.format.label());
        let four = self.widened_four(shader, blocks, word("i") & literal("0xfffffffcu", Lane::U32));
        let body = vec![
            Statement::Let("four".to_string(), four),
            Statement::Return(Some(named("four", FOUR).at(word("i") & 3))),
        ];
        let one = ShaderType::One(Lane::F32);
        accessor(shader, name.clone(), [("i", word("i").ty())], one, body);
        call(name, [at], one)
    }

    /// Four elements from an index on that is a multiple of four.
    pub fn widened_four(&self, shader: &mut Shader, blocks: BlockStorage, at: ShaderExpr) -> ShaderExpr {
        let name = format!("load4_{}_{}", self.name, blocks.format.label());
        let body = self.widening(shader, blocks);
        accessor(shader, name.clone(), [("i", word("i").ty())], FOUR, body);
        call(name, [at], FOUR)
    }

    fn widening(&self, shader: &mut Shader, blocks: BlockStorage) -> Statements {
        let BlockStorage { format, row_len } = blocks;
        let (layout, block_len) = (format.layout(), format.block_len());
        let mut body = Statements::new();
        let mut define = |name: &str, value: ShaderExpr| {
            let ty = value.ty();
            body.push(Statement::Let(name.to_string(), value));
            named(name, ty)
        };
        let i = word("i");
        let row_of_all = define("row_of_all", &i / row_len);
        let column = define("column", i - &row_of_all * row_len);
        let group = (row_of_all.clone() / ROWS) * blocks.n_blocks() + &column / block_len;
        let tile = define("tile", group * (layout.size_bytes / 4));
        let row = define("row", row_of_all & (ROWS - 1));
        let quad = define("quad", (column & (block_len - 1)) >> 2);
        let mut read = |at: ShaderExpr| self.read_word(shader, VecAccess(false), &at);
        let mut half = |at: usize| {
            let bits = read(&tile + at / 4 + (&row >> 1)) >> ((&row & 1) * 16);
            call("f16_to_f32", [bits & literal("0xffffu", Lane::U32)], ShaderType::One(Lane::F32))
        };
        let mut scale = define("scale", half(0));
        let mut offset = layout.offsets.map(|at| define("offset", half(at)));
        if let Some(at) = layout.sub_scales {
            let sub = define("sub", &quad / (block_len / 4 / format.n_subs()));
            let mut byte = |at: usize| {
                let bits = read(&tile + at / 4 + &sub * (ROWS / 4) + (&row >> 2)) >> ((&row & 3) * 8);
                bits & literal("0xffu", Lane::U32)
            };
            let sub_scale = define("sub_scale", byte(at));
            let (sub_scale, sub_offset) = match layout.sub_offsets {
                // A signed byte: shifted up and back down with its sign.
                SubOffsets::None => {
                    let signed =
                        call("i32", [sub_scale << 24], ShaderType::One(Lane::I32)) >> literal("24u", Lane::U32);
                    (signed, None)
                }
                SubOffsets::WithScales => (&sub_scale & 15, Some(sub_scale >> 4)),
                SubOffsets::At(at) => (sub_scale, Some(byte(at))),
            };
            let float = |x: ShaderExpr| call("f32", [x], ShaderType::One(Lane::F32));
            scale = define("sub_factor", scale * float(sub_scale));
            // Its integer offset is subtracted.
            let minus_one = literal("-1.0", Lane::F32);
            offset = offset.zip(sub_offset).map(|(m, sub)| define("sub_shift", m * float(sub) * minus_one));
        }
        let mut codes = |at: usize, bits: usize| {
            let per_word = 8 / bits;
            let first = read(&tile + at / 4 + (&quad / per_word) * ROWS + &row);
            let mask = literal(format!("{:#x}u", (0xffu32 >> (8 - bits)) * 0x0101_0101), Lane::U32);
            if per_word == 1 { first } else { (first >> ((&quad & (per_word - 1)) * bits)) & mask }
        };
        let (low_bits, high_bits) = format.code_bits();
        let mut all = codes(layout.low, low_bits);
        if let Some(at) = layout.high {
            all = all | (codes(at, high_bits) << low_bits);
        }
        let codes = define("codes", all);
        let byte = |k: usize| match k {
            3 => &codes >> 24,
            _ => (&codes >> (8 * k)) & literal("0xffu", Lane::U32),
        };
        let bias = literal(format!("{}.0", format.bias()), Lane::F32);
        let float = |k: usize| call("f32", [byte(k)], ShaderType::One(Lane::F32));
        let code = |k: usize| if format.bias() == 0 { float(k) } else { float(k) - bias.clone() };
        let q = define("q", FOUR.make([0, 1, 2, 3].map(code)));
        let scaled = scale.as_four() * q;
        let value = match offset {
            Some(offset) => scaled + offset.as_four(),
            None => scaled,
        };
        body.push(Statement::Return(Some(value)));
        body
    }
}

/// Bytes of a vector.
const VECTOR: usize = 16;
/// Vectors of a word of each of the rows of a tile: each holds those of four rows.
const QUADS: usize = ROWS / 4;

/// Some neighbouring elements ("steps", along k) of each of four rows, read as vectors: one of codes, another one where
/// codes have upper bits elsewhere, and those of scales. Neighbouring invocations that take neighbouring fours of rows, then
/// neighbouring steps, read neighbouring vectors.
#[derive(Clone, Copy)]
pub struct BlockSteps {
    blocks: BlockStorage,
    /// A multiple of four, up to [`BlockSteps::of_vector`].
    pub n_steps: usize,
}

impl BlockSteps {
    /// All steps that a vector of codes has.
    pub fn of_vector(blocks: BlockStorage) -> BlockSteps {
        BlockSteps { blocks, n_steps: 32 / blocks.format.code_bits().0 }
    }

    /// At most so many steps.
    pub fn at_most(self, n_steps: usize) -> BlockSteps {
        BlockSteps { n_steps: self.n_steps.min(n_steps), ..self }
    }

    /// Writes where four rows start, the first of which is a multiple of four, from the index of the first one's element at
    /// the first step, a multiple of 32 within the row.
    pub fn write_rows(&self, shader: &mut Shader, name: &str, at: ShaderExpr) {
        let BlockStorage { row_len, .. } = self.blocks;
        let row = shader.define(format!("{name}_row"), &at / row_len);
        shader.define(format!("{name}_column"), at - &row * row_len);
        shader.define(format!("{name}_quad"), (&row >> 2) & (QUADS - 1));
        shader.define(format!("{name}_group"), (row / ROWS) * (self.blocks.group_bytes() / VECTOR));
    }

    /// Reads the vectors of the steps from `k` on, a multiple of their number, of those rows. What is not needed of a vector
    /// is left behind: what follows is little enough to be kept in registers until it is widened.
    pub fn read(
        &self,
        shader: &mut Shader,
        memory: &LaunchMemory,
        input: usize,
        name: &str,
        k: &ShaderExpr,
    ) -> Vec<ShaderExpr> {
        let format = self.blocks.format;
        let (layout, block_len) = (format.layout(), format.block_len());
        let quad = word(format!("{name}_quad"));
        let column = shader.define(format!("{name}_at"), word(format!("{name}_column")) + k);
        let tile = word(format!("{name}_group")) + (&column >> log2(block_len)) * (layout.size_bytes / VECTOR);
        let tile = shader.define(format!("{name}_tile"), tile);
        let four = shader.define(format!("{name}_four"), (column & (block_len - 1)) >> 2);
        let mut raw = Vec::new();
        let (low_bits, high_bits) = format.code_bits();
        for (at, bits) in [(Some(layout.low), low_bits), (layout.high, high_bits)] {
            let Some(at) = at else { continue };
            let per_word = 8 / bits;
            let word_of_block = if per_word == 1 { four.clone() } else { &four >> log2(per_word) };
            let vector = memory.load_vector(shader, input, &tile + at / VECTOR + word_of_block * QUADS + &quad);
            // The bits of the first step come first.
            raw.push(match per_word * 4 == self.n_steps {
                true => vector,
                false => vector >> ((&four & (per_word - 1)) * bits).as_four(),
            });
        }
        for at in [Some(0), layout.offsets].into_iter().flatten() {
            let vector = memory.load_vector(shader, input, &tile + at / VECTOR + (&quad >> 1));
            let vector = shader.define(format!("{name}_halves{at}"), vector);
            let is_upper = (&quad & 1).equals(1);
            let half = |k: usize| select(vector.component(k), vector.component(k + 2), is_upper.clone());
            raw.push(ShaderType::Vec(2, Lane::U32).make([half(0), half(1)]));
        }
        for at in sub_sections(&layout) {
            let sub = &four >> log2(format.block_len() / 4 / format.n_subs());
            let vector = memory.load_vector(shader, input, &tile + at / VECTOR + sub);
            let vector = shader.define(format!("{name}_subs{at}"), vector);
            let [odd, upper] = [(&quad & 1).equals(1), (&quad & 2).equals(2)];
            let pair = |k: usize| select(vector.component(k), vector.component(k + 1), odd.clone());
            raw.push(select(pair(0), pair(2), upper));
        }
        raw
    }

    /// The types of what [`BlockSteps::read`] gives.
    pub fn raw_types(&self) -> Vec<ShaderType> {
        let layout = self.blocks.format.layout();
        let codes = [Some(layout.low), layout.high].into_iter().flatten().map(|_| WORDS);
        let halves = [Some(0), layout.offsets].into_iter().flatten().map(|_| ShaderType::Vec(2, Lane::U32));
        codes.chain(halves).chain(sub_sections(&layout).map(|_| ShaderType::One(Lane::U32))).collect()
    }

    /// Widens the scales of what was read: the first part of widening all steps.
    pub fn widen_scales(&self, shader: &mut Shader, name: &str, raw: &[ShaderExpr]) -> BlockCodes {
        shader.functions(convert::FUNCTIONS);
        let layout = self.blocks.format.layout();
        let mut raw = raw.iter();
        let mut next = || raw.next().expect("bug: as many as were read").clone();
        let low = next();
        let high = layout.high.map(|_| next());
        let mut halves = |shader: &mut Shader, part: &str| {
            let halves = next();
            let bits = |k: usize| match k % 2 {
                0 => halves.component(k / 2) & literal("0xffffu", Lane::U32),
                _ => halves.component(k / 2) >> 16,
            };
            let floats = [0, 1, 2, 3].map(|k| call("f16_to_f32", [bits(k)], ShaderType::One(Lane::F32)));
            shader.define(format!("{name}_{part}"), FOUR.make(floats))
        };
        let mut scale = halves(shader, "scale");
        let mut offset = layout.offsets.map(|_| halves(shader, "offset"));
        if layout.sub_scales.is_some() {
            let subs = next();
            let bytes = |word: &ShaderExpr| [0, 8, 16, 24].map(|by| (word >> by) & literal("0xffu", Lane::U32));
            let floats = |each: [ShaderExpr; 4]| FOUR.make(each.map(|x| call("f32", [x], ShaderType::One(Lane::F32))));
            let (by_subs, minus) = match layout.sub_offsets {
                // Signed bytes: shifted up and back down with their signs.
                SubOffsets::None => {
                    let up = [24, 16, 8, 0].map(|by| call("i32", [&subs << by], ShaderType::One(Lane::I32)));
                    (floats(up.map(|x| x >> literal("24u", Lane::U32))), None)
                }
                SubOffsets::WithScales => {
                    (floats(bytes(&subs).map(|x| x & 15)), Some(floats(bytes(&subs).map(|x| x >> 4))))
                }
                SubOffsets::At(_) => (floats(bytes(&subs)), Some(floats(bytes(&next())))),
            };
            scale = shader.define(format!("{name}_factor"), scale * by_subs);
            // Integer offsets are subtracted.
            let minus_one = literal("-1.0", Lane::F32);
            offset = offset.zip(minus).map(|(m, by)| shader.define(format!("{name}_shift"), m * by * minus_one));
        }
        BlockCodes { low, high, scale, offset }
    }

    /// Widens four steps of what was read: per step, the elements of four rows, `{name}{four}_0` to `{name}{four}_3`.
    pub fn widen_four(&self, shader: &mut Shader, name: &str, from: &BlockCodes, four: usize) -> [ShaderExpr; 4] {
        let format = self.blocks.format;
        let (low_bits, high_bits) = format.code_bits();
        let splat = |text: String| call("vec4", [literal(text, Lane::U32)], WORDS);
        let shifted = |x: &ShaderExpr, by: usize| if by == 0 { x.clone() } else { x >> ShaderExpr::from(by).as_four() };
        let part = |x: &ShaderExpr, bits: usize| match bits {
            8 => x.clone(),
            _ => shifted(x, four * bits) & splat(format!("{:#x}u", (0xffu32 >> (8 - bits)) * 0x0101_0101)),
        };
        let low = part(&from.low, low_bits);
        let codes = match &from.high {
            Some(high) => low | (part(high, high_bits) << ShaderExpr::from(low_bits).as_four()),
            None => low,
        };
        let codes = shader.define(format!("{name}{four}_codes"), codes);
        [0, 1, 2, 3].map(|byte| {
            let code = match byte {
                3 => shifted(&codes, 24),
                _ => shifted(&codes, 8 * byte) & splat("0xffu".to_string()),
            };
            let mut q = call("vec4<f32>", [code], FOUR);
            if format.bias() != 0 {
                q = q - literal(format!("{}.0", format.bias()), Lane::F32);
            }
            let scaled = &from.scale * q;
            let value = from.offset.iter().fold(scaled, |scaled, offset| scaled + offset);
            shader.define(format!("{name}{four}_{byte}"), value)
        })
    }
}

/// Codes of some steps of four rows, with their scales and offsets.
pub struct BlockCodes {
    low: ShaderExpr,
    high: Option<ShaderExpr>,
    scale: ShaderExpr,
    offset: Option<ShaderExpr>,
}

/// Where integers of sub-blocks are read: scales, and offsets that have bytes of their own.
fn sub_sections(layout: &TileLayout) -> impl Iterator<Item = usize> {
    let offsets = match layout.sub_offsets {
        SubOffsets::At(at) => Some(at),
        SubOffsets::None | SubOffsets::WithScales => None,
    };
    layout.sub_scales.into_iter().chain(offsets)
}

fn log2(n: usize) -> usize {
    n.ilog2() as usize
}
