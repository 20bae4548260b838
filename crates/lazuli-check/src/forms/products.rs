//! Products: every layout, tile and dtype, few rows, long sums, batches; what follows a product in its kernel; convolutions
//! and attention.

use lazuli::{BlockFormat, DType};

use super::{Draft, FLOATS, Form};
use crate::contract::Contract;
use crate::index::Index;
use crate::map::Map;
use crate::model::Model;
use crate::movement::Move;
use crate::program::Program;

pub fn forms() -> Vec<Form> {
    vec![
        Form::new("product, tiles", || {
            let sizes = [[64, 64, 64], [129, 67, 131], [257, 300, 250], [61, 515, 1030]];
            sizes.into_iter().flat_map(layouts).collect()
        }),
        Form::new("product, one row", || [[1, 1536, 1536], [1, 1001, 333]].into_iter().flat_map(rows).collect()),
        Form::new("product, few rows", || [[8, 1536, 768], [5, 333, 1001]].into_iter().flat_map(rows).collect()),
        Form::new("product, 64 rows", || vec![product([64, 1536, 1536], DType::F32, false, false)]),
        Form::new("product, one column", || [[1000, 1536, 1], [999, 77, 3]].into_iter().flat_map(columns).collect()),
        Form::new("product, long sums", || [[8, 20_000, 8], [33, 9001, 17]].into_iter().flat_map(layouts).collect()),
        Form::new("product, half floats", || {
            let of = |dtype| [[64, 300, 130], [1, 1001, 333], [7, 260, 515]].map(|s| product(s, dtype, false, true));
            [DType::F16, DType::BF16].into_iter().flat_map(of).collect()
        }),
        Form::new("product, integers", || {
            [DType::I32, DType::U32, DType::U8]
                .into_iter()
                .flat_map(|d| [[33, 130, 67], [1, 300, 77]].map(|s| product(s, d, false, false)))
                .collect()
        }),
        Form::new("product, batches", || vec![batches(&[7, 33, 65, 17]), batches(&[130, 9, 64, 8])]),
        Form::new("product with bias and activation", || FLOATS.map(layer).to_vec()),
        Form::new("product of a map", || {
            let sizes = [[1, 1001, 333], [1, 5000, 40], [257, 96, 1], [5, 300, 515]];
            sizes.into_iter().flat_map(|size| [false, true].map(|right| product_of_a_map(size, right))).collect()
        }),
        Form::new("gated layer", || [1, 3].into_iter().flat_map(gated_layers).collect()),
        Form::new("weights in blocks", || BlockFormat::all().iter().map(quantised).collect()),
        Form::new("convolution", || FLOATS.iter().flat_map(|d| convolutions(*d)).collect()),
        Form::new("attention", || FLOATS.iter().flat_map(|d| attention(*d)).collect()),
        Form::new("attention, as maths", || vec![as_maths(6, 47), as_maths(1, 257)]),
    ]
}

/// `a · b` of `m × k` and `k × n`, each perhaps stored the other way round. Positive floats: see reductions.
fn product([m, k, n]: [usize; 3], dtype: DType, a_turned: bool, b_turned: bool) -> Program {
    let mut draft = Draft::default();
    let mut operand = |rows: usize, columns: usize, turned: bool| {
        let kind = if dtype.is_float() { 2 } else { 0 };
        let x = draft.noise(&if turned { [columns, rows] } else { [rows, columns] }, dtype, kind);
        if turned { draft.op(Move::T, &[x]) } else { x }
    };
    let (a, b) = (operand(m, k, a_turned), operand(k, n, b_turned));
    draft.op(Contract::Matmul, &[a, b]);
    draft.done()
}

fn layouts(sizes: [usize; 3]) -> Vec<Program> {
    let all = [(false, false), (false, true), (true, false), (true, true)];
    all.map(|(a, b)| product(sizes, DType::F32, a, b)).to_vec()
}

/// Few rows: how they lie hardly matters, but how the matrix does.
fn rows(sizes: [usize; 3]) -> [Program; 2] {
    [false, true].map(|turned| product(sizes, DType::F32, false, turned))
}

fn columns(sizes: [usize; 3]) -> [Program; 2] {
    [false, true].map(|turned| product(sizes, DType::F32, turned, false))
}

/// A batch of products, and one whose right side is shared.
fn batches(sizes: &[usize; 4]) -> Program {
    let [batch, m, k, n] = *sizes;
    let mut draft = Draft::default();
    let (a, b) = (draft.noise(&[batch, m, k], DType::F32, 2), draft.noise(&[batch, k, n], DType::F32, 2));
    let shared = draft.noise(&[k, n], DType::F32, 2);
    draft.op(Contract::Matmul, &[a, b]);
    draft.op(Contract::Matmul, &[a, shared]);
    draft.done()
}

/// A product of which one operand is a map that nobody else reads, and the other is stored. The product may make the map if it is a row
/// or a column.
fn product_of_a_map([m, k, n]: [usize; 3], right: bool) -> Program {
    let mut draft = Draft::default();
    let shape = if right { [k, n] } else { [m, k] };
    let (x, y) = (draft.noise(&shape, DType::F32, 2), draft.noise(&[shape[1]], DType::F32, 2));
    let stored = draft.noise(&if right { [m, k] } else { [k, n] }, DType::F32, 2);
    let map = draft.op(Map::Unary("sqrt"), &[x]);
    let map = draft.op(Map::Binary("mul"), &[map, y]);
    draft.op(Contract::Matmul, &if right { [stored, map] } else { [map, stored] });
    draft.done()
}

/// `(σ(x·G) ∘ (x·U))·D + x`, with weights of floats, and with weights in blocks: on the CPU the products by `G` and `U` share a launch,
/// and, for one row, the product by `D` makes its left operand.
fn gated_layers(n_rows: usize) -> [Program; 2] {
    [false, true].map(|in_blocks| {
        let mut draft = Draft::default();
        // With shorter sums the whole layer would be one chained product.
        let x = draft.noise(&[n_rows, 544], DType::F32, 2);
        let weight = |draft: &mut Draft, shape: [usize; 2], seed: u32| {
            let w = match in_blocks {
                true => draft.op(Model::Blocks { format: &BlockFormat::all()[0], shape, seed }, &[]),
                false => draft.noise(&shape, DType::F32, 2),
            };
            draft.op(Move::T, &[w])
        };
        let (gate, up) = (weight(&mut draft, [96, 544], 1), weight(&mut draft, [96, 544], 2));
        let down = weight(&mut draft, [544, 96], 3);
        let gate = draft.op(Contract::Matmul, &[x, gate]);
        let gate = draft.op(Map::Unary("sigmoid"), &[gate]);
        let up = draft.op(Contract::Matmul, &[x, up]);
        let hidden = draft.op(Map::Binary("mul"), &[gate, up]);
        let y = draft.op(Contract::Matmul, &[hidden, down]);
        draft.op(Map::Binary("add"), &[y, x]);
        draft.done()
    })
}

fn layer(dtype: DType) -> Program {
    let mut draft = Draft::default();
    let (x, w) = (draft.noise(&[65, 257], dtype, 2), draft.noise(&[257, 130], dtype, 2));
    let bias = draft.noise(&[130], dtype, 2);
    let y = draft.op(Contract::Matmul, &[x, w]);
    let y = draft.op(Map::Binary("add"), &[y, bias]);
    draft.op(Map::Unary("relu"), &[y]);
    draft.done()
}

/// One row and some, times weights that are stored in blocks; and rows of such weights by index.
fn quantised(format: &'static BlockFormat) -> Program {
    let mut draft = Draft::default();
    let w = draft.op(Model::Blocks { format, shape: [67, 512], seed: 1 }, &[]);
    let turned = draft.op(Move::T, &[w]);
    for n_rows in [1, 9] {
        let x = draft.noise(&[n_rows, 512], DType::F32, 2);
        draft.op(Contract::Matmul, &[x, turned]);
    }
    let words = draft.noise(&[5], DType::U32, 167);
    draft.op(Index::Embedding, &[w, words]);
    draft.done()
}

fn convolutions(dtype: DType) -> Vec<Program> {
    let cases = [
        ([1, 16, 29, 31], [24, 16, 3, 3], Model::Convolve { stride: 1, padding: 1, dilation: 1, groups: 1 }),
        ([2, 8, 17, 19], [12, 8, 5, 5], Model::Convolve { stride: 2, padding: 0, dilation: 1, groups: 1 }),
        ([2, 12, 15, 15], [12, 1, 3, 3], Model::Convolve { stride: 1, padding: 1, dilation: 2, groups: 12 }),
        ([3, 33, 13, 11], [17, 33, 1, 1], Model::Convolve { stride: 1, padding: 0, dilation: 1, groups: 1 }),
    ];
    let program = |(x, w, op): ([usize; 4], [usize; 4], Model)| {
        let mut draft = Draft::default();
        let (x, bias) = (draft.noise(&x, dtype, 2), draft.noise(&[w[0], 1, 1], dtype, 2));
        let w = draft.noise(&w, dtype, 2);
        let y = draft.op(op, &[x, w]);
        let y = draft.op(Map::Binary("add"), &[y, bias]);
        draft.op(Map::Unary("relu"), &[y]);
        draft.done()
    };
    cases.into_iter().map(program).collect()
}

/// Many queries beside keys, fewer queries than keys (as with a cache), one query, heads that share keys.
fn attention(dtype: DType) -> Vec<Program> {
    let cases = [([1, 2, 193, 64], 2, 193, true), ([1, 4, 33, 32], 2, 70, true), ([2, 4, 1, 64], 4, 130, false)];
    let program = |(q, n_heads, n_keys, causal): ([usize; 4], usize, usize, bool)| {
        let mut draft = Draft::default();
        let kv = [q[0], n_heads, n_keys, q[3]];
        let (q, k, v) = (draft.noise(&q, dtype, 1), draft.noise(&kv, dtype, 1), draft.noise(&kv, dtype, 2));
        draft.op(Model::Attend { causal }, &[q, k, v]);
        draft.done()
    };
    cases.into_iter().map(program).collect()
}

fn as_maths(n_heads: usize, length: usize) -> Program {
    let mut draft = Draft::default();
    let [q, k, v] = [1, 1, 2].map(|kind| draft.noise(&[n_heads, length, 32], DType::F32, kind));
    let k = draft.op(Move::Transpose(-1, -2), &[k]);
    let scores = draft.op(Contract::Matmul, &[q, k]);
    let weights = draft.op(crate::line::Line::Softmax(-1), &[scores]);
    draft.op(Contract::Matmul, &[weights, v]);
    draft.done()
}
