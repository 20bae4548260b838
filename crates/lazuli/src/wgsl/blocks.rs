//! Elements of blocks, widened as they are read: the WGSL of what `blocks/resident.rs` does. Four neighbouring elements of a
//! row are one word of codes, masked. Knows the sections of a tile; nothing of index maps or instructions.

use super::memory::{SlotMemory, VecAccess, accessor};
use super::shader::Shader;
use super::tree::{ShaderExpr, ShaderType, Statement, Statements, call, literal, named, word};
use crate::blocks::{BlockStorage, ROWS, SubOffsets};
use crate::dtype::Lane;

const FOUR: ShaderType = ShaderType::Vec(4, Lane::F32);

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
